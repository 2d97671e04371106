"""Responses over a websocket (C8): GET /v1/responses with an upgrade. Owns: the life of one connection. This is reading
frames into a bounded queue, answering them one at a time in order, remembering responses that are not stored, and the
ways in which it ends. Refuses to know: what is in a frame, and who may connect (the gate).

Theory of operation. A connection has two tasks and a timer. The reader never stops reading, so it notices a disconnect
while a response is under way; frames wait in a queue that is bounded in frames and bytes. The worker takes one frame
at a time and sends the response. Each send waits for the socket, so a slow client slows down its own subscription and
nothing else. Nobody cancels the worker. The reader, the timer and the server's drain cut the subscription instead, so
that a run that was just submitted is never lost between two awaits.

A steer does not wait in the queue. The reader stores it as a signal of the run under way, which then ends at its next
safe point. The worker sends that end and submits the successor with the steer, also when the client has left by then.
`_steering` keeps the order: accepted is sent before the end, and no steer is taken once the worker counts them."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect

from ninelives.core.errors import ClientError, NinelivesError, ServerError, store_unavailable
from ninelives.core.history import turn_messages
from ninelives.core.ids import run_of, wire_id
from ninelives.core.spec import Message
from ninelives.core.state import RunState, chainable, hands_back
from ninelives.dialects.asking import Context
from ninelives.dialects.responses import frames, parse, socket
from ninelives.dialects.responses.socket import Create, FrameRefused, Held, SteerFrame
from ninelives.engine.base import Broken, Chunk, Cut, CutOff, Order, StreamEnded, Ticket
from ninelives.engine.subscription import Subscription
from ninelives.http import answering
from ninelives.http.answering import RouteParts
from ninelives.http.body import check_object, too_large
from ninelives.http.errors import unexpected
from ninelives.http.references import check_results, parse_resolved
from ninelives.journal.base import Logger
from ninelives.journal.steering import Steer
from ninelives.journal.values import StoreUnavailable

QUEUE = 16
"""Frames that may wait while a response is under way."""
MEMORY_BYTES = 8 * 1024 * 1024
"""How much one connection remembers of responses that are not stored."""
RESTARTING, POLICY_VIOLATION, NORMAL = 1012, 1008, 1000
_PER_REQUEST = frozenset({"idempotency-key", "x-stainless-retry-count", "last-event-id"})
"""Headers about one request. A connection carries many."""


class Gone(Exception):
    """The websocket is closed: nothing can be sent any more."""


class Active(msgspec.Struct, frozen=True):
    """The response under way on a connection, and the steers that it has accepted."""

    owner: str
    run: str
    stream_id: str | None
    steers: list[SteerFrame]


class Memory:
    """Finished responses that only this connection knows. Bounded in bytes; the least recently used go first."""

    def __init__(self, bound: int = MEMORY_BYTES) -> None:
        self._bound = bound
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self.size = 0

    def keep(self, run: str, held: Held) -> None:
        """Remember a response, unless it is larger than the bound."""
        self.forget(run)
        data = msgspec.json.encode(held)
        if len(data) > self._bound:
            return
        self._held[run] = data
        self.size += len(data)
        while self.size > self._bound:
            self.size -= len(self._held.popitem(last=False)[1])

    def find(self, run: str | None) -> Held | None:
        """The remembered response of a run, or None."""
        if run is None or run not in self._held:
            return None
        self._held.move_to_end(run)
        return msgspec.json.decode(self._held[run], type=Held)

    def forget(self, run: str | None) -> None:
        """Drop a response. Called when its continuation failed, because it must not be tried again."""
        self.size -= len(self._held.pop(run or "", b""))


class ResponsesSocket:
    """The endpoint: one object for all connections."""

    def __init__(self, parts: RouteParts, log: Logger) -> None:
        self._parts = parts
        self._log = log
        self._open: Counter[str] = Counter()
        """Open websockets by key."""

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one connection. The gate has checked host, origin and key."""
        if "idempotency-key" in websocket.headers:
            words = "An Idempotency-Key names one request, but a websocket carries many. POST that request instead."
            raise ClientError("idempotency_not_supported", words)
        key, most = websocket.state.key.id, self._parts.websockets
        if self._open[key] >= most:
            words = f"This key has {most} open websockets: close one, or raise limits.websockets."
            raise ClientError("too_many_websockets", words, status=429)
        self._open[key] += 1
        try:
            await websocket.accept()
            await Connection(websocket, self._parts, self._log).serve()
        finally:
            self._open[key] -= 1


class Connection:
    """One websocket."""

    def __init__(self, websocket: WebSocket, parts: RouteParts, log: Logger) -> None:
        context = answering.context_of(cast(Request, websocket), parts)  # both have headers and state
        headers = {name: value for name, value in context.headers.items() if name not in _PER_REQUEST}
        self._context = replace(context, headers=headers)
        self._websocket = websocket
        self._parts = parts
        self._engine = parts.engine
        self._log = log
        self._memory = Memory()
        self._waiting: deque[Create | FrameRefused] = deque()
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self._reading: Subscription | None = None
        self._active: Active | None = None
        self._steering = asyncio.Lock()
        self._steer_frames = 0
        self._gone = False
        self._expired = False

    async def serve(self) -> None:
        """Serve until the client disconnects, the time limit is reached or the server stops."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._read()), tasks.create_task(self._limit())]
            try:
                await self._work()
            except Gone:
                self._log.info("websocket_left", request_id=self._websocket.state.request_id)
            finally:
                for task in beside:
                    task.cancel()

    # beside the work

    async def _read(self) -> None:
        try:
            while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
                await self._receive_frame(message.get("text"))
        except (Gone, RuntimeError) as closed:  # RuntimeError: Starlette's, for a closed connection
            self._log.info("websocket_closed", request_id=self._websocket.state.request_id, reason=repr(closed))
        self._gone = True
        self._cut()

    async def _limit(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._parts.websocket_s):
                await self._websocket.state.key_ended.wait()
        self._expired = True
        self._cut()

    def _cut(self) -> None:
        if self._reading is not None:
            self._reading.cut()
        self._news.set()

    async def _receive_frame(self, text: str | None) -> None:
        """Queue a frame. One that cannot be queued is refused at once."""
        frame = await self._frame(text)
        size = len(frame.raw) if isinstance(frame, Create) else 0
        if isinstance(frame, SteerFrame):
            await self._steer(frame)
        elif len(self._waiting) >= QUEUE or self._waiting_bytes + size > max(self._parts.body.bytes, size):
            words = f"{len(self._waiting)} frames wait on this connection. Wait for their responses, or open another."
            error = ClientError("too_many_queued", words, status=429, retry_after=1)
            await self._refuse(error, frame.stream_id)
        else:
            self._waiting.append(frame)
            self._waiting_bytes += size
            self._news.set()

    async def _frame(self, text: str | None) -> Create | SteerFrame | FrameRefused:
        if text is None:
            words = "Send text frames: one JSON object each, with type response.create."
            return FrameRefused(ClientError("unsupported_frame", words))
        try:
            raw = text.encode()
            if len(raw) > self._parts.body.bytes:
                raise too_large(self._parts.body.bytes)
            await self._parts.aside.run(len(raw), check_object, raw, self._parts.body)
        except ClientError as error:
            return FrameRefused(error)
        return await self._parts.aside.run(len(raw), socket.read_frame, raw, self._parts.max_parts)

    async def _steer(self, frame: SteerFrame) -> None:
        """Store a steer for the response under way, and say so. A failure is told with the input."""
        async with self._steering:
            lane = self._active.stream_id if self._active is not None else None
            try:
                accepted = await self._accept(frame)
            except Exception as failed:
                return await self._send_steer(frame, lane, self._error_of(failed))
            await self._send_steer(accepted, lane, None)

    async def _accept(self, frame: SteerFrame) -> SteerFrame:
        if frame.error is not None:
            raise frame.error
        active, run = self._active, run_of("responses", frame.previous)
        if active is None or run != active.run:
            raise await self._not_here(run, frame.previous)
        accepted = replace(frame, id=f"steer_{self._engine.new_id()}")
        by = f"key {self._websocket.state.key.id}"
        steer = Steer(id=accepted.id or "", messages=frame.messages(), by=by, ends=True)
        try:
            await self._engine.steer(active.owner, active.run, steer)
        except ClientError as error:
            if error.code != "run_not_accepting_steer":
                raise
            raise _completed(frame.previous) from error
        active.steers.append(accepted)
        return accepted

    async def _not_here(self, run: str | None, shown: str) -> ClientError:
        """Why there is nothing to steer: it has ended, or is not under way on this connection."""
        state = await self._engine.look(self._context.owner, run) if run is not None else None
        held = self._memory.find(run)
        if (state is not None and state.ended) or (held is not None and held.owner == self._context.owner):
            return _completed(shown)
        words = f"No response {shown} is under way on this connection."
        return ClientError("response_not_found", words, status=404)

    async def _send_steer(self, frame: SteerFrame, lane: str | None, error: NinelivesError | None) -> None:
        self._steer_frames += 1
        await self._send(socket.steer_text(self._steer_frames - 1, frame, lane, error))

    # the work

    async def _work(self) -> None:
        while not self._gone:
            if self._websocket.state.key_ended.is_set():
                return await self._close(POLICY_VIOLATION, "the key has ended")
            if self._expired:
                words = f"This connection has been open for {self._parts.websocket_s:.0f} s. Open another one to go on."
                await self._refuse(ClientError("websocket_connection_limit_reached", words), None)
                return await self._close(NORMAL, "connection limit reached")
            if self._waiting:
                frame = self._waiting.popleft()
                self._waiting_bytes -= len(frame.raw) if isinstance(frame, Create) else 0
                await self._answer(frame)
            else:
                self._news.clear()
                await self._news.wait()

    async def _answer(self, frame: Create | FrameRefused) -> None:
        """Answer one frame, and what follows where it is steered. A failure becomes an error frame, and the connection
        goes on."""
        error: NinelivesError
        try:
            if isinstance(frame, Create):
                following = await self._create(frame, ())
                while following is not None:
                    following = await self._create(*following)
                return
            error = frame.error
        except Gone:
            raise
        except Exception as failed:
            error = self._error_of(failed)
        if isinstance(frame, Create) and frame.previous is not None:
            self._memory.forget(run_of("responses", frame.previous))
        await self._refuse(error, frame.stream_id)

    def _error_of(self, failed: Exception) -> NinelivesError:
        """The error that the client is told."""
        if isinstance(failed, NinelivesError):
            return failed
        if isinstance(failed, StoreUnavailable):
            return store_unavailable(str(failed))
        request_id = self._websocket.state.request_id
        trace = "".join(traceback.format_exception(failed))
        self._log.error("websocket_failed", request_id=request_id, trace=trace)
        return unexpected(failed, request_id)

    async def _create(self, frame: Create, carried: Sequence[SteerFrame]) -> tuple[Create, Sequence[SteerFrame]] | None:
        """One response. Returns the request that follows, where it was steered. `carried`: the steers of this one."""
        context = self._context.under(frame.model)
        try:
            ticket = await self._submit(context, frame)
        except (NinelivesError, StoreUnavailable) as failed:
            if not carried:
                raise
            await self._return(carried, frame.stream_id, self._error_of(failed).message)
            return None
        state, steers = None, list[SteerFrame]()
        self._active = Active(context.owner, ticket.run, frame.stream_id, steers)
        try:
            state = await self._stream(context.owner, ticket, frame)
        except Gone:
            self._gone = True
        finally:
            async with self._steering:
                self._active = None
            await self._engine.close(context.owner, ticket, whole=state is not None and not self._gone)
        if not steers:
            return None
        if state is None:
            state = await self._end_without_reader(context.owner, ticket.run)
        return await self._successor(frame, state, steers)

    async def _submit(self, context: Context, frame: Create) -> Ticket:
        try:
            held = self._memory.find(run_of("responses", frame.previous) if frame.previous else None)
            if held is not None and held.owner == context.owner and frame.previous is not None:
                size, limit = len(frame.raw), self._parts.max_parts
                parsed = await self._parts.aside.run(size, parse.parse, frame.raw, context, limit)
                parsed = socket.continued(parsed, held, frame.previous)
            else:
                parsed = await parse_resolved(self._parts, context, frame.raw)
            if parsed.unmatched:
                await check_results(self._parts, context, parsed)
            asked = context.waiting(parsed.asked)
            size, credential = len(frame.raw), context.credential
            order = Order(owner=asked.owner, spec=parsed.spec, asked=asked, size=size, credential=credential)
            return await self._parts.engine.submit(order)
        except ClientError as error:
            if error.status == 404 and error.param == "previous_response_id" and not frame.stored:
                raise socket.unknown_previous(frame.previous or "") from error
            raise

    async def _end_without_reader(self, owner: str, run: str) -> RunState | None:
        """The end of a steered run whose reader left. None where it reads its steers itself: it was parked."""
        state = await self._engine.look(owner, run)
        if state is None or state.facts.accepted.spec.on_disconnect != "detach":
            return None
        try:
            return await self._engine.wait(owner, run)
        except CutOff:
            return None

    async def _successor(
        self, frame: Create, state: RunState | None, steers: Sequence[SteerFrame]
    ) -> tuple[Create, Sequence[SteerFrame]] | None:
        """The request that follows a steered run. None where that run keeps its steers, has read them, or has none."""
        if state is None or not state.ended:
            return None
        left = [steer for steer in steers if steer.id not in state.facts.steered]
        if left and (not chainable(state) or hands_back(state)):
            words = f"The response is {state.status}, and nothing follows it by itself: send this input again."
            if hands_back(state):
                words = "The response waits for results of your functions: send this input along with them."
            await self._return(left, frame.stream_id, words)
            return None
        return (socket.successor(frame, left), left) if left else None

    async def _return(self, steers: Sequence[SteerFrame], lane: str | None, words: str) -> None:
        for steer in steers:
            await self._send_steer(steer, lane, ClientError("successor_creation_failed", words))

    async def _stream(self, owner: str, ticket: Ticket, frame: Create) -> RunState | None:
        """Send all events of a run; its state where it has ended. If it is not stored and can be continued, remember
        it."""
        subscription = self._engine.attach(owner, ticket.run, frames.ResponsesProjection())
        self._reading = subscription
        try:
            if self._gone or self._expired:  # this happened while the run was being admitted
                return None
            await self._pump(subscription, frame.stream_id)
        finally:
            self._reading = None
            subscription.close()
        state = await self._engine.look(owner, ticket.run)
        if state is None or not state.ended:
            return None
        if not state.facts.accepted.spec.store and chainable(state):
            self._memory.keep(ticket.run, await self._held_of(owner, state))
        elif state.status == "failed" and frame.previous is not None:
            self._memory.forget(run_of("responses", frame.previous))
        return state

    async def _pump(self, subscription: Subscription, stream_id: str | None) -> None:
        while True:
            match await subscription.next():
                case Chunk(data):
                    if self._steering.locked():
                        async with self._steering:  # a steer is told before what it does
                            pass
                    for text in socket.texts(data, stream_id):
                        await self._send(text)
                case StreamEnded():
                    return
                case Broken(reason):
                    raise _broken(subscription.run, reason)
                case Cut():
                    if not self._gone and not self._expired:
                        await self._close(RESTARTING, "the server restarts")
                        raise Gone
                    return
                case _:  # Idle: the server library pings
                    continue

    async def _held_of(self, owner: str, state: RunState) -> Held:
        resolved = state.facts.accepted.resolved
        messages = turn_messages(state)
        if resolved.session_turns is not None:
            turns = await self._engine.durable.turns(owner, resolved)
            messages = [m for turn in turns for m in msgspec.json.decode(turn, type=list[Message])] + messages
        return Held(tuple(messages), resolved.previous, resolved.session or "", resolved.remember, owner)

    # sending

    async def _refuse(self, error: NinelivesError, stream_id: str | None) -> None:
        await self._send(socket.error_text(error, stream_id))

    async def _send(self, text: str) -> None:
        try:
            await self._websocket.send({"type": "websocket.send", "text": text})
        except (WebSocketDisconnect, RuntimeError, OSError) as error:
            raise Gone from error  # each layer has an exception of its own for a closed connection

    async def _close(self, code: int, reason: str) -> None:
        try:
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError, OSError) as error:
            raise Gone from error


def _completed(shown: str) -> ClientError:
    words = f"The response {shown} has ended: send response.create with it as previous_response_id."
    return ClientError("response_already_completed", words, status=409)


def _broken(run: str, reason: str) -> ServerError:
    shown = wire_id("responses", run)
    return ServerError("stream_broken", f"The events of {shown} cannot be read any further: {reason}.", status=500)
