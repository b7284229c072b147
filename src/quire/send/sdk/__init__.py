"""Transports over the official SDKs, one module each; an SDK is loaded when its module is."""
