"""What owners, keys and profiles may use, and what they have used. Owns: their limits (LimitBook); the cost of a model
call, and the counts of this process until they are in the store (Accounts); the checks of limits at the start of a run
and before each model call, the errors and headers that tell of them (LimitGuard). Refuses to know: where limits are
written, and how usage is stored.

Theory of operation. Counts go to the store in batches, a moment after they arise, so that no run waits for them. All
processes of a shared store add to the same rows. A process that is killed loses what it counted in the last moment; the
journal of each run still has its usage.

A run counts for its owner, its key and its profile. Each of them may have limits. What was used is the sum over all
processes of the store as of half a second ago, and what this process counted since. So one process is exact, and each
further one can pass a limit by what it starts within about a second. A budget is checked before each model call, so a
run can pass it by one call. What the run did until then stands."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from ninelives.core.errors import ClientError
from ninelives.core.events import AnyEvent, Budget, MessageCompleted, RunAccepted, ToolFinished, Usage
from ninelives.core.limits import NO_LIMITS, UNIT, Limits, Window
from ninelives.core.state import Facts
from ninelives.engine.base import EngineParts, Limited, Order
from ninelives.journal.values import DAY_MS, MINUTE_MS, Spending, StoreUnavailable, Subject, Totals, next_month

T = TypeVar("T", bound=AnyEvent)
NOTHING = Usage()
FLUSH_S = 0.5
"""How long counts wait for others."""
FRESH_S = 0.5
"""How long the answer of the store counts."""
SUBJECTS = 10_000
MOST = 10_000
"""More different counts than this are not kept while the store is away."""
Place = tuple[str, str, str, int]
"""Owner, model, key and minute."""
EVERYBODY = "*"
"""The name of the limits of all owners."""
Headers = tuple[tuple[bytes, bytes], ...]
OWNER_WAIT_S = 5
"""When somebody with too many runs should come back."""


class LimitBook:
    """All limits of a server. `keys` has those of each key, by its id; it may change."""

    def __init__(
        self, owners: Mapping[str, Limits], profiles: Mapping[str, Limits], keys: Mapping[str, Limits]
    ) -> None:
        self._default = owners.get(EVERYBODY, NO_LIMITS)
        self._owners = {name: limits.over(self._default) for name, limits in owners.items() if name != EVERYBODY}
        self._profiles = {name: limits for name, limits in profiles.items() if limits != NO_LIMITS}
        self._keys = keys

    def of(self, owner: str, key: str, profile: str) -> Limited:
        """Whom and what a run counts for, where that has limits."""
        own, of_key = self._owners.get(owner, self._default), self._keys.get(key, NO_LIMITS)
        of_profile = self._profiles.get(profile, NO_LIMITS)
        if own is of_key is of_profile is NO_LIMITS:
            return ()
        found: tuple[tuple[Subject, Limits], ...] = (
            (("owner", owner), own),
            (("key", key), of_key),
            (("model", profile), of_profile),
        )
        return tuple([each for each in found if each[1] != NO_LIMITS])


class Counted(Struct):
    """What was spent in one place. The fields of Spending that are not in Place."""

    at: int
    runs: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int = 0
    errors: int = 0


COUNTS = Counted.__struct_fields__[1:]


class Since(Struct):
    """What a subject used since the store was asked."""

    runs: int = 0
    tokens: int = 0
    cost: int = 0


class Accounts:
    """The counts of one process."""

    def __init__(self, parts: EngineParts) -> None:
        self._ledger = parts.durable.ledger
        self._price_of = parts.price_of
        self.now_ms = parts.now_ms
        self._log = parts.log
        self._counts: dict[Place, Counted] = {}
        """What the store does not have yet."""
        self._due = asyncio.Event()
        self._read: dict[Subject, tuple[Totals, float]] = {}
        """What the store said of subjects with limits, and when."""
        self._since: dict[Subject, Since] = {}
        """What was counted here since then."""

    def count(
        self, owner: str, model: str, key: str, *, usage: Usage = NOTHING, runs: int = 0, errors: int = 0
    ) -> None:
        """Add to what is used now. Where there is no room for more counts it is lost."""
        at = self.now_ms()
        place = owner, model, key, at // MINUTE_MS
        counted = self._counts.get(place)
        if counted is None:
            if len(self._counts) >= MOST:
                return self._log.error("usage_not_counted", owner=owner, model=model)
            counted = self._counts[place] = Counted(at)
            self._due.set()
        counted.runs += runs
        counted.errors += errors
        if usage is NOTHING:
            return None
        counted.input_tokens += usage.input_tokens
        counted.output_tokens += usage.output_tokens
        counted.cached_tokens += usage.cached_tokens
        counted.reasoning_tokens += usage.reasoning_tokens
        counted.cost += usage.cost
        for subject in subjects_of(owner, key, model) if self._since else ():
            if (since := self._since.get(subject)) is not None:
                since.tokens += usage.input_tokens + usage.output_tokens
                since.cost += usage.cost

    def fail(self, accepted: RunAccepted) -> None:
        """A run has failed."""
        self.count(accepted.owner, accepted.spec.model, accepted.key, errors=1)

    def spend(self, accepted: RunAccepted, event: T) -> T:
        """Count the tokens of a fact. Returns it with their cost, by the upstream's bill or the price table."""
        if not isinstance(event, MessageCompleted | ToolFinished) or event.usage == NOTHING:
            return event
        usage, model = event.usage, accepted.spec.model
        if self._price_of is not None and not usage.cost and (price := self._price_of(model)) is not None:
            usage = replace(usage, cost=price.of(usage))
            event = replace(event, usage=usage)
        self.count(accepted.owner, model, accepted.key, usage=usage)
        return event

    def reserve(self, subject: Subject) -> None:
        """A run of this subject is about to be opened: it counts from now on."""
        self._since.setdefault(subject, Since()).runs += 1

    async def used(self, subject: Subject) -> Totals:
        """What a subject used: by the store, and since it was asked. A store that is away is asked later."""
        loop = asyncio.get_running_loop()
        known, at = self._read.get(subject, (Totals(), -FRESH_S))
        if loop.time() - at >= FRESH_S:
            self._forget_old(loop.time())
            self._since[subject] = Since()
            try:
                await self.flush()
                known = await self._ledger.totals(subject, self.now_ms())
            except StoreUnavailable as error:
                self._log.warning("usage_not_read", reason=str(error))
            self._read[subject] = known, loop.time()
        since = self._since.get(subject)
        return _with(known, since, self.now_ms() // MINUTE_MS) if since is not None else known

    def _forget_old(self, now: float) -> None:
        """Whoever did nothing for a while is asked for again."""
        if len(self._read) > SUBJECTS:
            for subject in [subject for subject, (_, at) in self._read.items() if now - at > FRESH_S]:
                del self._read[subject]
                self._since.pop(subject, None)

    async def run(self) -> None:
        """Store what is counted, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Store what was counted. What cannot be stored now is tried again."""
        counts, self._counts = self._counts, {}
        if not counts:
            return
        spent = [Spending(owner=o, model=m, key=k, **asdict(counted)) for (o, m, k, _), counted in counts.items()]
        try:
            await self._ledger.add(spent)
        except StoreUnavailable as error:
            self._log.warning("usage_not_stored", reason=str(error))
            for place, counted in counts.items():
                later = self._counts.setdefault(place, Counted(counted.at))
                for name in COUNTS:
                    setattr(later, name, getattr(later, name) + getattr(counted, name))
            self._due.set()


def subjects_of(owner: str, key: str, model: str) -> tuple[Subject, Subject, Subject]:
    """Who and what a run counts for."""
    return ("owner", owner), ("key", key), ("model", model)


def _with(known: Totals, since: Since, minute: int) -> Totals:
    minutes = {each[0]: each for each in known.minutes}
    _, runs, tokens = minutes.get(minute, (minute, 0, 0))
    minutes[minute] = minute, runs + since.runs, tokens + since.tokens
    return Totals(
        known.day_tokens + since.tokens,
        known.day_cost + since.cost,
        known.month_tokens + since.tokens,
        known.month_cost + since.cost,
        tuple(minutes.values()),
    )


class Pass(Struct, frozen=True):
    """The permission to start a run. Give it back with `LimitGuard.leave` once the run is opened, or was not."""

    subjects: tuple[Subject, ...] = ()
    budget: Budget | None = None
    headers: Headers = ()


FREE = Pass()
"""Nobody has limits."""


class LimitGuard:
    """The limits of one process."""

    def __init__(self, parts: EngineParts, accounts: Accounts, driven: Callable[[], Iterable[RunAccepted]]) -> None:
        """`driven` gives the runs that are driven here."""
        self._limits_of = parts.limits_of
        self._peers = parts.durable.peers
        self._now_ms = parts.now_ms
        self.accounts = accounts
        self._opening: Counter[Subject] = Counter()
        """Runs that are on their way into the store."""
        self._driven = driven

    async def enter(self, order: Order) -> tuple[Order, Pass]:
        """The order with its budget, and the permission to start a run. Where a limit is reached: ClientError (429); if
        the order may belong to a run that is there, the order with this refusal."""
        limited = self._limits_of(order.owner, order.credential, order.spec.model)
        if not limited:
            return order, FREE
        try:
            given = await self._grant(limited)
        except ClientError as refusal:
            if (order.asked.key is None and not order.asked.match) or order.spec.kept == "memory" or order.spec.chore:
                raise
            return replace(order, refusal=refusal), FREE
        return (order if given.budget is None else replace(order, budget=given.budget)), given

    async def _grant(self, limited: Limited) -> Pass:
        """The permission, which counts from now on. Raises ClientError (429) where a limit is reached."""
        for subject, limits in limited:
            if limits.runs is not None and await self._active(subject) + self._opening[subject] >= limits.runs:
                raise too_many_runs(subject, limits.runs)
        used = {subject: await self.accounts.used(subject) for subject, _ in limited}
        headers = self._rates(limited, used)
        for subject, limits in limited:
            self._check_totals(subject, limits, used[subject])
        subjects = tuple(subject for subject, _ in limited)
        for subject in subjects:
            self.accounts.reserve(subject)
            self._opening[subject] += 1
        return Pass(subjects, budget_of([limits for _, limits in limited]), headers)

    async def _active(self, subject: Subject) -> int:
        """The open runs of an owner, wherever they are; of a key or a profile, those that are driven here."""
        if subject[0] == "owner":
            return await self._peers.active(subject[1])
        return sum(subject in subjects_of(run.owner, run.key, run.spec.model) for run in self._driven())

    def leave(self, given: Pass) -> None:
        """The run is in the store, or will not be."""
        for subject in given.subjects:
            self._opening[subject] -= 1

    async def exhausted(self, facts: Facts) -> str:
        """Why a run may not ask its model again, for people; empty where it may."""
        accepted, spent = facts.accepted, facts.usage
        if accepted.budget is not None:
            tokens, bound = spent.input_tokens + spent.output_tokens, accepted.budget
            if bound.tokens and tokens >= bound.tokens:
                return f"The budget of this run is used up: {tokens} of {bound.tokens} tokens. {GO_ON}"
            if bound.cost and spent.cost >= bound.cost:
                return f"The budget of this run is used up: {spent.cost / UNIT:g} of {bound.cost / UNIT:g}. {GO_ON}"
        for subject, limits in self._limits_of(accepted.owner, accepted.key, accepted.spec.model):
            for limit in spendings(limits, await self.accounts.used(subject)):
                if limit.used >= limit.bound:
                    return f"{limit.words(subject)} {GO_ON}"
        return ""

    def _check_totals(self, subject: Subject, limits: Limits, used: Totals) -> None:
        now = self._now_ms()
        for limit in spendings(limits, used):
            if limit.used >= limit.bound:
                end = (now // DAY_MS + 1) * DAY_MS if limit.per == "day" else next_month(now)
                wait = max(1, (end - now) // 1000)
                words = f"{limit.words(subject)} It begins anew at the next {limit.per} (UTC)."
                raise ClientError("budget_exceeded", words, status=429, retry_after=wait)

    def _rates(self, limited: Limited, used: dict[Subject, Totals]) -> Headers:
        """The headers for the tightest limits per minute. Raises where one is reached."""
        found = self._windows(limited, used)
        for noun, (window, subject) in found.items():
            if (wait := window.wait_s()) > 0:
                error = too_fast(noun, window, subject, wait)
                error.headers = headers_of({noun: window for noun, (window, _) in found.items()})
                raise error
        after = {noun: window.after_one() if noun == "requests" else window for noun, (window, _) in found.items()}
        return headers_of(after)

    def _windows(self, limited: Limited, used: dict[Subject, Totals]) -> dict[str, tuple[Window, Subject]]:
        """The tightest limits per minute, by what they count."""
        found: dict[str, tuple[Window, Subject]] = {}
        for subject, limits in limited:
            per_minute = limits.requests_per_minute, limits.tokens_per_minute
            for place, (noun, bound) in enumerate(zip(("requests", "tokens"), per_minute, strict=True), 1):
                window = None if bound is None else self._window(bound, used[subject], place)
                if window is not None and (noun not in found or window.remaining < found[noun][0].remaining):
                    found[noun] = window, subject
        return found

    def _window(self, bound: int, used: Totals, place: int) -> Window:
        now = self._now_ms()
        minute, second = now // MINUTE_MS, now % MINUTE_MS / 1000
        counts = {each[0]: each[place] for each in used.minutes}
        return Window(bound, counts.get(minute, 0), counts.get(minute - 1, 0), second)


GO_ON = (
    "What it did is kept: go on with POST /v1/runs/{id}/fork and the number of its last event as from_seq, or with "
    "previous_response_id."
)


class SpendingLimit(Struct, frozen=True):
    """A limit per day or month, and what is used of it."""

    per: str
    noun: str
    used: int
    bound: int

    def words(self, subject: Subject) -> str:
        """What is used up, and of whom."""
        scale = UNIT if self.noun == "money" else 1
        amount = f"{self.used / scale:g} of {self.bound / scale:g} {self.noun if self.noun == 'tokens' else ''}".strip()
        return f"The {self.noun} of {named(subject)} for this {self.per} is used up: {amount}."


def spendings(limits: Limits, used: Totals) -> Iterator[SpendingLimit]:
    """The limits per day and month that there are."""
    for per, tokens, money in (
        ("day", limits.tokens_per_day, limits.money_per_day),
        ("month", limits.tokens_per_month, limits.money_per_month),
    ):
        if tokens is not None:
            yield SpendingLimit(per, "tokens", used.day_tokens if per == "day" else used.month_tokens, tokens)
        if money is not None:
            cost = used.day_cost if per == "day" else used.month_cost
            yield SpendingLimit(per, "money", cost, round(money * UNIT))


def budget_of(limits: list[Limits]) -> Budget | None:
    """The tightest budget of a run."""
    tokens = [each.tokens_per_run for each in limits if each.tokens_per_run is not None]
    money = [each.money_per_run for each in limits if each.money_per_run is not None]
    if not tokens and not money:
        return None
    return Budget(max(1, min(tokens)) if tokens else 0, max(1, round(min(money) * UNIT)) if money else 0)


def named(subject: Subject) -> str:
    """A subject in words."""
    return f"{'profile' if subject[0] == 'model' else subject[0]} {subject[1]}"


def too_many_runs(subject: Subject, most: int) -> ClientError:
    """The error for one more run than there may be."""
    words = f"The {named(subject)} has {most} runs that have not ended, which is the most. Wait for one, or cancel one."
    return ClientError("too_many_runs", words, status=429, retry_after=OWNER_WAIT_S)


def too_fast(noun: str, window: Window, subject: Subject, wait: int) -> ClientError:
    """The error for a limit per minute."""
    words = f"The limit of {window.limit} {noun} per minute of {named(subject)} is reached. Try again in {wait} s."
    return ClientError("rate_limit_exceeded", words, status=429, retry_after=wait)


def headers_of(windows: Mapping[str, Window]) -> Headers:
    """Limits per minute as OpenAI tells them."""
    return tuple(pair for noun, window in windows.items() for pair in _rate_headers(noun, window))


def _rate_headers(noun: str, window: Window) -> Headers:
    return (
        (f"x-ratelimit-limit-{noun}".encode(), b"%d" % window.limit),
        (f"x-ratelimit-remaining-{noun}".encode(), b"%d" % window.remaining),
        (f"x-ratelimit-reset-{noun}".encode(), f"{window.reset_s():.3g}s".encode()),
    )
