"""What a broken or hostile upstream, or a caller that leaves at any moment, may not do to the client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.models.base import Finished, Part
from holdfast.models.chunks import Answer, Lines, Whole
from holdfast.models.feed import Feed, Take
from tests.models.raw import DEADLINE, SOON, wired

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HI = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USED = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"
JSON = b'{"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}'


def chunks(*bodies: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies)


SSE = CHUNKED + chunks(HI, HI, STOP, USED, DONE, b"")


# ---- a read that ends between two pieces of a body is no end ----


async def fed(intake: type[Lines] | type[Whole], taking: bool, *reads: bytes) -> list[Part]:
    """All parts of an answer that comes in these reads, while somebody waits for each."""
    parts: list[Part] = []
    line, _ = wired()
    answer = Answer()
    take: Take | None = (lambda some: parts.extend(some) or True) if taking else None
    feed = Feed(line, intake(answer, 1_000_000), answer, take)

    async def all_of_it() -> None:
        while not feed.done:
            parts.extend(await feed.next(SOON, SOON, SOON))

    async with asyncio.timeout(DEADLINE):
        reading = asyncio.create_task(all_of_it())
        for data in reads:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            line.data_received(data)
        await reading
    feed.close()
    return parts


@pytest.mark.parametrize("taking", [True, False])
@pytest.mark.parametrize(("intake", "data"), [(Lines, SSE), (Whole, CHUNKED + chunks(JSON[:9], JSON[9:], b""))])
async def test_parts_are_the_same_wherever_the_bytes_are_cut(intake: Any, data: bytes, taking: bool) -> None:
    end = await fed(intake, False, data)
    assert isinstance(end[-1], Finished)
    assert end[-1].usage.input_tokens == 3
    assert await fed(intake, taking, *(data[at : at + 1] for at in range(len(data)))) == end
    for cut in range(1, len(data)):
        assert await fed(intake, taking, data[:cut], data[cut:]) == end, cut
