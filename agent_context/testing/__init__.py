"""What every backend and every store must do, as tests that a third party can run on theirs.

    class TestMine(BackendContract):
        def make_backend(self):
            return MyBackend()

Any runner that collects classes and methods called `test…` will do; nothing here needs pytest.
`forbid_requests` keeps tests of programs from reaching a vendor.
"""

from agent_context._request_guard import forbid_requests
from agent_context.testing.backends import BackendContract, request_of
from agent_context.testing.stores import StoreContract

__all__ = ["BackendContract", "StoreContract", "forbid_requests", "request_of"]
