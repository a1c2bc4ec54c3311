"""`python -m agent_context.cli`."""

from agent_context.cli import main

main()
