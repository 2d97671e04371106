"""The journal contract suite. Owns: the rules that every backend keeps, one test each. Refuses to know: any one
backend. Use it so, in a test module run by pytest with pytest-asyncio in auto mode:

    class TestMyStore(JournalContract):
        @pytest.fixture
        async def backend(self, tmp_path):
            clock = VirtualClock()
            store = await MyStore.open_at(tmp_path, clock)
            yield Backend(store, clock)
            await store.close()

Further fields of Backend say what the store can do: whether claims have leases, how another process sees the store, and
how the next process opens it. Tests that need what is missing are skipped.
"""

from __future__ import annotations

from ninelives.testing.contract.accounts import AuditContract, KeyContract
from ninelives.testing.contract.append import AppendContract
from ninelives.testing.contract.catalog import CatalogContract
from ninelives.testing.contract.claim import ClaimContract
from ninelives.testing.contract.conversations import ConversationContract
from ninelives.testing.contract.delete import DeleteContract
from ninelives.testing.contract.deliveries import DeliveriesContract
from ninelives.testing.contract.forget import ForgetContract
from ninelives.testing.contract.ledger import LedgerContract
from ninelives.testing.contract.open import OpenContract
from ninelives.testing.contract.owners import OwnerContract
from ninelives.testing.contract.read import ReadContract
from ninelives.testing.contract.sessions import SessionContract
from ninelives.testing.contract.upkeep import UpkeepContract
from ninelives.testing.contract.waiting import WaitingContract


class JournalContract(
    OpenContract,
    AppendContract,
    ClaimContract,
    ReadContract,
    DeleteContract,
    CatalogContract,
    ConversationContract,
    OwnerContract,
    DeliveriesContract,
    WaitingContract,
    ForgetContract,
    SessionContract,
    UpkeepContract,
    LedgerContract,
    KeyContract,
    AuditContract,
):
    """Subclass it with one fixture `backend` that gives a Backend with a fresh store."""
