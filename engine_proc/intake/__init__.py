"""The way of a request into the engine: wire, ingress thread, validation, admission, inbox."""
