"""`isorate explain`: where one request's time went, and what happened meanwhile, from a result folder."""
