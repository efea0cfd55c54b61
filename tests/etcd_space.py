"""The key space of etcd in memory: transactions on one revision, and reads of an older one. It refuses as etcd."""

from __future__ import annotations

from holdfast.objects.etcd.wire import (
    Compact,
    Condition,
    EtcdReply,
    GetKeys,
    Holds,
    Operation,
    PutKey,
    RemoveKey,
    Request,
    Row,
    RowPage,
    Txn,
)

OPERATIONS_MAX = 128
CLUSTER_ID = 7


class EtcdSpace:
    """``states[n]`` are the keys and values at revision ``n``."""

    def __init__(self) -> None:
        self.states: list[dict[bytes, bytes]] = [{}]
        self.compacted = 0

    @property
    def now(self) -> dict[bytes, bytes]:
        return self.states[-1]

    @property
    def revision(self) -> int:
        return len(self.states)

    def carry_out(self, request: Request, *, behind: int = 0) -> EtcdReply:
        """The reply of a member that is ``behind`` by some revisions."""
        if isinstance(request, Compact):
            assert request.revision <= self.revision, "etcdserver: mvcc: required revision is a future revision"
            self.compacted = max(self.compacted, request.revision)
            return EtcdReply(CLUSTER_ID, (), revision=self.revision)
        if isinstance(request, GetKeys):
            old = behind if request.any_member else 0
            page = self._get(self.states[max(0, len(self.states) - 1 - old)], request)
            return EtcdReply(CLUSTER_ID, (page,), revision=self.revision)
        for part in (request.conditions, request.then, request.otherwise):
            assert len(part) <= OPERATIONS_MAX, "etcdserver: too many operations in txn request"
        succeeded = all(self._holds(each) for each in request.conditions)
        branch = request.then if succeeded else request.otherwise
        written = [each.key for each in branch if not isinstance(each, GetKeys)]
        assert len(written) == len(set(written)), "etcdserver: duplicate key given in txn request"
        state = dict(self.now)
        found = [self._operate(state, each) for each in branch]
        if written:
            self.states.append(state)
        return EtcdReply(CLUSTER_ID, found, succeeded, self.revision)

    def _holds(self, condition: Condition) -> bool:
        if isinstance(condition, Holds):
            return self.now.get(condition.key) == condition.value
        return (condition.key in self.now) is not condition.negated

    def _operate(self, state: dict[bytes, bytes], operation: Operation) -> RowPage:
        match operation:
            case GetKeys():
                return self._get(state, operation)
            case PutKey(key, value):
                state[key] = value
            case RemoveKey(key):
                state.pop(key, None)
        return RowPage()

    def _get(self, state: dict[bytes, bytes], get: GetKeys) -> RowPage:
        within = (lambda key: get.key <= key < get.end) if get.end else (lambda key: key == get.key)
        rows = [Row(key, state[key]) for key in sorted(state) if within(key)]
        return RowPage(rows[: get.limit or None], more=0 < get.limit < len(rows))


class SpaceMembers:
    """``Members`` over one key space in memory: every request gets its reply."""

    cluster_id = CLUSTER_ID

    def __init__(self, space: EtcdSpace) -> None:
        self._space = space

    async def send(self, txn: Txn) -> EtcdReply:
        return self._space.carry_out(txn)

    async def ask(self, request: Request) -> EtcdReply:
        return self._space.carry_out(request)

    async def close(self) -> None:
        """Nothing is held."""
