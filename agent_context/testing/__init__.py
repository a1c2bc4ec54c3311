"""What every backend and every store must do, as tests that a third party can run on theirs.

    class TestMine(BackendContract):
        def make_backend(self):
            return MyBackend()

Any runner that collects classes and methods called `test…` will do; nothing here needs pytest.
"""

from agent_context.testing.backends import BackendContract, request_of
from agent_context.testing.stores import StoreContract

__all__ = ["BackendContract", "StoreContract", "request_of"]
