"""The journal contract suite. Owns: the rules that every backend keeps, one test each. Refuses to know: any one
backend. Use it so, in a test module run by pytest with pytest-asyncio in auto mode:

    class TestMyStore(JournalContract):
        @pytest.fixture
        async def backend(self, tmp_path):
            clock = VirtualClock()
            store = await MyStore.open_at(tmp_path, clock)
            yield Backend(store, clock)
            await store.close()
"""

from __future__ import annotations

from holdfast.testing.contract_append import AppendContract
from holdfast.testing.contract_catalog import CatalogContract
from holdfast.testing.contract_claim import ClaimContract
from holdfast.testing.contract_conversations import ConversationContract
from holdfast.testing.contract_delete import DeleteContract
from holdfast.testing.contract_deliveries import DeliveriesContract
from holdfast.testing.contract_open import OpenContract
from holdfast.testing.contract_owners import OwnerContract
from holdfast.testing.contract_read import ReadContract
from holdfast.testing.contract_upkeep import UpkeepContract


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
    UpkeepContract,
):
    """Subclass it with one fixture `backend` that gives a Backend with a fresh store."""
