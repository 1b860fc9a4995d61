"""Engines behind one protocol; sockets, stamps, validation and shutdown stay outside of them."""
