"""Runs an application inside a service of an ASGI server."""

from .lifespans import lifespan as lifespan
