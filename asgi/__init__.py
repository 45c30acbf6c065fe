"""What an ASGI server needs to run an application inside a service."""

from .lifespans import lifespan as lifespan
