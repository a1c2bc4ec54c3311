"""Adapters to models: each a file, each found by the entry points `agent_context.backends`."""
