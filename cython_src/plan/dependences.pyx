"""Dependence analysis: from accesses on cells to a task graph, flat or closed cyclically.

Recording registers every task once, in plan order. Closing registers the plan a second time: the edges that end in
the second copy, folded back, are the graph of the steady state. Those that come from the first copy carry a token:
they bind a task of iteration k to one of iteration k + 1.

Accesses that resolve to the same producers share a join node, an empty task that runs inline; without it two
blockings that meet give a quadratic number of edges.

References
----------
Closing by replaying accesses: Alvarez et al., "Optimizing Iterative Data-flow Scientific Applications using Directed
Cyclic Graphs" (arXiv 2208.06332). Here joins are found for arbitrary cell lists, and those of shared memory apart from
those of data.
"""

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport free, qsort
from libc.string cimport memcmp, memset

import numpy as np

from ..errors import UsageError
from .model import AccessTable, TaskGraph

cdef enum:
    C_FLOW = 0                       # why a task waits for another; those of one kind may share a join
    C_ANTI = 1
    C_SHARING = 2
    C_READ = 0
    C_WRITE = 1
    C_CONCURRENT = 3                 # this and above: in any order with others of the same kind


def topological_order(const int32_t[::1] offsets, const int32_t[::1] split, const int32_t[::1] successors):
    """Nodes so that each edge within an iteration points forward, int32, shape (num_nodes,). Raises `ValueError`: these
    edges hold a cycle."""
    cdef Py_ssize_t n = split.shape[0], u, k, head = 0, tail = 0
    cdef int32_t w
    cdef int32_t[::1] order = np.empty(n, np.int32), waiting = np.zeros(n, np.int32)
    with nogil:
        for u in range(n):
            for k in range(offsets[u], split[u]):
                waiting[successors[k]] += 1
        for u in range(n):
            if waiting[u] == 0:
                order[tail] = <int32_t> u
                tail += 1
        while head < tail:
            u = order[head]
            head += 1
            for k in range(offsets[u], split[u]):
                w = successors[k]
                waiting[w] -= 1
                if waiting[w] == 0:
                    order[tail] = w
                    tail += 1
    if tail != n:
        raise ValueError("the edges within an iteration form a cycle")
    return np.asarray(order)


cdef struct IntVector:
    int32_t *data
    Py_ssize_t size
    Py_ssize_t capacity


cdef extern from *:
    """
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>
    /* realloc for arrays that grow by doubling. Large ones come in huge pages where the system gives them: with small
     * ones, a third of the time of recording a large graph was page faults. */
    static void *grow_array(void *former, size_t former_bytes, size_t bytes)
    {
        const size_t huge = (size_t)2 << 20;
        void *grown = NULL;
        if (bytes < huge)
            return realloc(former, bytes);
        if (posix_memalign(&grown, huge, (bytes + huge - 1) / huge * huge) != 0)
            return NULL;
        madvise(grown, (bytes + huge - 1) / huge * huge, MADV_HUGEPAGE);
        if (former_bytes > 0)
            memcpy(grown, former, former_bytes);
        free(former);
        return grown;
    }
    """
    void *grow_array(void *former, size_t former_bytes, size_t bytes) nogil


cdef int grow(IntVector *v) except -1 nogil:
    cdef Py_ssize_t capacity = 2 * v.capacity + 64
    cdef int32_t *grown = <int32_t *> grow_array(v.data, v.size * sizeof(int32_t), capacity * sizeof(int32_t))
    if grown == NULL:
        with gil:
            raise MemoryError
    v.data = grown
    v.capacity = capacity
    return 0


cdef inline int push(IntVector *v, int32_t value) except -1 nogil:
    if v.size == v.capacity:
        grow(v)
    v.data[v.size] = value
    v.size += 1
    return 0


cdef struct Edge:
    int32_t source, target, token


cdef inline int push_edge(IntVector *edges, int32_t source, int32_t target, int token) except -1 nogil:
    push(edges, source)
    push(edges, target)
    return push(edges, token)


cdef int compare_int32(const void *a, const void *b) noexcept nogil:
    cdef int32_t x = (<const int32_t *> a)[0], y = (<const int32_t *> b)[0]
    return (x > y) - (x < y)


cdef inline void sort_int32(int32_t *data, Py_ssize_t n) noexcept nogil:
    """Ascending; most lists are short and nearly in order."""
    cdef Py_ssize_t i, k
    cdef int32_t value
    if n > 32:
        qsort(data, n, sizeof(int32_t), compare_int32)
        return
    for i in range(1, n):
        value = data[i]
        k = i
        while k > 0 and data[k - 1] > value:
            data[k] = data[k - 1]
            k -= 1
        data[k] = value


cdef inline Py_ssize_t hash_slot(const int32_t *list, Py_ssize_t n, int kind, Py_ssize_t size) noexcept nogil:
    """Place of a list of one kind in a hash table of `size` places, a power of two."""
    cdef Py_ssize_t i
    cdef uint64_t h = 1469598103934665603ULL + <uint64_t> kind
    for i in range(n):
        h = (h ^ <uint64_t> list[i]) * 1099511628211ULL
    h ^= h >> 29
    return <Py_ssize_t> (h & <uint64_t> (size - 1))


cdef class _Recorder:
    """State of one analysis.

    Cells remember their last writer, or all members of the last group of writers that may run in any order, the
    readers since, and for a group whom its members wait for. These are lists in one pool; they only grow at their
    heads, so that a list once taken stays what it was. Cells with the same history share one list: a plan with shared
    buffers has blocks that use a hundred thousand cells with a handful of histories.
    """

    cdef Py_ssize_t num_tasks, num_cells
    cdef int32_t[::1] task_offsets, access_list, list_offsets, list_cells, access_buffer
    cdef const uint8_t[::1] access_kind
    # per cell
    cdef int32_t[::1] writers        # heads of lists in the pool, -1: empty
    cdef int32_t[::1] readers
    cdef int32_t[::1] before         # whom the members of a group wait for
    cdef uint8_t[::1] writer_kind
    # pool: the task, as which buffer it used the cell (an arena's have cells in common), whether it only read
    cdef IntVector node_task, node_buffer, node_reads, node_next
    cdef IntVector node_walked       # stamp of the last search that has gone through the list from here on
    cdef IntVector newest_before     # newest list that goes on at node i: [i + 1]; at none: [0]
    # per task id of both copies: marks for removing duplicates
    cdef int32_t[::1] mark
    cdef int32_t stamp
    # interned producer lists: hash table of indices into the list arrays
    cdef IntVector producer, list_start, list_length, list_kind, list_uses
    cdef int32_t[::1] table          # its size is a power of two
    cdef Py_ssize_t table_used
    # what each recorded consumer waits for: (consumer, list) pairs
    cdef IntVector wait_consumer, wait_list
    cdef IntVector awaited

    def __cinit__(self, access_table):
        t = access_table
        self.num_tasks = t.num_tasks
        self.num_cells = t.num_cells
        self.task_offsets = np.ascontiguousarray(t.task_offsets, dtype=np.int32)
        self.access_kind = np.ascontiguousarray(t.access_kind, dtype=np.uint8)
        self.access_list = np.ascontiguousarray(t.access_list, dtype=np.int32)
        self.list_offsets = np.ascontiguousarray(t.list_offsets, dtype=np.int32)
        self.list_cells = np.ascontiguousarray(t.list_cells, dtype=np.int32)
        self.access_buffer = np.ascontiguousarray(t.access_buffer, dtype=np.int32)
        self.writers, self.readers, self.before = (np.full(self.num_cells, -1, np.int32) for _ in range(3))
        self.writer_kind = np.full(self.num_cells, C_WRITE, np.uint8)
        self.mark = np.full(2 * self.num_tasks, -1, np.int32)
        self.table = np.full(1024, -1, np.int32)
        push(&self.newest_before, -1)

    def __dealloc__(self):
        cdef int32_t *arrays[14]
        cdef int32_t *array
        arrays[:] = [
            self.node_task.data, self.node_buffer.data, self.node_reads.data, self.node_next.data,
            self.node_walked.data, self.newest_before.data, self.producer.data, self.list_start.data,
            self.list_length.data, self.list_kind.data, self.list_uses.data, self.wait_consumer.data,
            self.wait_list.data, self.awaited.data]
        for array in arrays:
            free(array)

    cdef int add(self, int32_t task) except -1 nogil:
        """Note a producer of the current access, once."""
        if self.mark[task] != self.stamp:
            self.mark[task] = self.stamp
            push(&self.awaited, task)
        return 0

    cdef int32_t intern(self, int kind) except -2 nogil:
        """Number of the producer list in `awaited`, -1 if it is empty; one that a join might serve is stored once."""
        cdef Py_ssize_t n = self.awaited.size, slot
        cdef int32_t which
        if n == 0:
            return -1
        if n <= 2:
            return self.store(n, kind)
        sort_int32(self.awaited.data, n)
        slot = hash_slot(self.awaited.data, n, kind, self.table.shape[0])
        while self.table[slot] >= 0:
            which = self.table[slot]
            if (self.list_length.data[which] == n and self.list_kind.data[which] == kind
                    and memcmp(self.producer.data + self.list_start.data[which], self.awaited.data,
                               n * sizeof(int32_t)) == 0):
                return which
            slot = (slot + 1) & (self.table.shape[0] - 1)
        which = self.store(n, kind)
        self.table[slot] = which
        self.table_used += 1
        if 2 * self.table_used > self.table.shape[0]:
            self.grow_table()
        return which

    cdef int32_t store(self, Py_ssize_t n, int kind) except -2 nogil:
        cdef Py_ssize_t i
        push(&self.list_start, <int32_t> self.producer.size)
        push(&self.list_length, <int32_t> n)
        push(&self.list_kind, kind)
        push(&self.list_uses, 0)
        for i in range(n):
            push(&self.producer, self.awaited.data[i])
        return <int32_t> self.list_start.size - 1

    cdef int grow_table(self) except -1 nogil:
        cdef Py_ssize_t size = 4 * self.table.shape[0], i, slot
        with gil:
            self.table = np.full(size, -1, np.int32)
        for i in range(self.list_start.size):
            if self.list_length.data[i] <= 2:
                continue
            slot = hash_slot(self.producer.data + self.list_start.data[i], self.list_length.data[i],
                             self.list_kind.data[i], size)
            while self.table[slot] >= 0:
                slot = (slot + 1) & (size - 1)
            self.table[slot] = <int32_t> i
        return 0

    cdef int wait_for(self, int32_t consumer, int kind) except -1 nogil:
        """Note that `consumer` waits for the producers in `awaited`, and forget them."""
        cdef int32_t which = self.intern(kind)
        if which >= 0:
            self.list_uses.data[which] += 1
            push(&self.wait_consumer, consumer)
            push(&self.wait_list, which)
        self.awaited.size = 0
        self.stamp += 1
        return 0

    cdef bint joins_group(self, int32_t cell, int kind, int32_t buffer) noexcept nogil:
        """Whether a writer belongs to the group that wrote the cell last."""
        return (kind >= C_CONCURRENT and self.writer_kind[cell] == kind and self.readers[cell] < 0
                and self.node_buffer.data[self.writers[cell]] == buffer)

    cdef int find_producers(self, int32_t a, int reason) except -1 nogil:
        """Collect in `awaited` the tasks that access `a` must wait for, of one kind of edge."""
        cdef int32_t cell, node, buffer = self.access_buffer[a], which = self.access_list[a]
        cdef int kind = self.access_kind[a], why
        cdef Py_ssize_t c
        for c in range(self.list_offsets[which], self.list_offsets[which + 1]):
            cell = self.list_cells[c]
            if kind == C_READ:
                node = self.writers[cell]
            elif self.joins_group(cell, kind, buffer):
                node = self.before[cell]
            elif self.readers[cell] >= 0:  # they stand for the writers before them
                node = self.readers[cell]
            else:
                node = self.writers[cell]
            while node >= 0 and self.node_walked.data[node] != self.stamp:
                self.node_walked.data[node] = self.stamp
                if self.node_buffer.data[node] != buffer:
                    why = C_SHARING
                else:
                    why = C_ANTI if kind == C_WRITE or self.node_reads.data[node] else C_FLOW
                if why == reason:
                    self.add(self.node_task.data[node])
                node = self.node_next.data[node]
        return 0

    cdef int32_t node_before(self, int32_t task, int32_t buffer, bint reads, int32_t following) except -2 nogil:
        """Head of the list that starts with this use and goes on at `following`, made once for a task."""
        cdef int32_t node = self.newest_before.data[following + 1]
        if (node >= 0 and self.node_task.data[node] == task and self.node_buffer.data[node] == buffer
                and self.node_reads.data[node] == reads):
            return node
        node = <int32_t> self.node_task.size
        push(&self.node_task, task)
        push(&self.node_buffer, buffer)
        push(&self.node_reads, reads)
        push(&self.node_next, following)
        push(&self.node_walked, -1)
        push(&self.newest_before, -1)
        self.newest_before.data[following + 1] = node
        return node

    cdef int touch(self, int32_t t, int32_t cell, int kind, int32_t buffer) except -1 nogil:
        """Note that task `t` has used a cell."""
        if kind == C_READ:
            if ((self.writers[cell] < 0 or self.node_task.data[self.writers[cell]] != t)
                    and (self.readers[cell] < 0 or self.node_task.data[self.readers[cell]] != t)):
                self.readers[cell] = self.node_before(t, buffer, True, self.readers[cell])
        elif self.joins_group(cell, kind, buffer):
            if self.node_task.data[self.writers[cell]] != t:
                self.writers[cell] = self.node_before(t, buffer, False, self.writers[cell])
        else:
            self.before[cell] = self.readers[cell] if self.readers[cell] >= 0 else self.writers[cell]
            self.writers[cell] = self.node_before(t, buffer, False, -1)
            self.writer_kind[cell] = kind
            self.readers[cell] = -1
        return 0

    cdef int record(self, int32_t offset, bint keep) except -1 nogil:
        """Register all tasks once, as ids offset + 0 ... num_tasks - 1; keep what they wait for if asked."""
        cdef int32_t task, t, a, which
        cdef Py_ssize_t c
        cdef int reason
        for task in range(<int32_t> self.num_tasks):
            t = task + offset
            if keep:
                for reason in range(C_SHARING + 1):
                    for a in range(self.task_offsets[task], self.task_offsets[task + 1]):
                        self.find_producers(a, reason)
                        self.wait_for(t, reason)
            # Only now change the cells: a task's own accesses must not see each other.
            for a in range(self.task_offsets[task], self.task_offsets[task + 1]):
                which = self.access_list[a]
                for c in range(self.list_offsets[which], self.list_offsets[which + 1]):
                    self.touch(t, self.list_cells[c], self.access_kind[a], self.access_buffer[a])
        return 0


def record_graph(access_table, bint closed=True):
    """Find the dependences of a plan.

    Parameters
    ----------
    access_table : AccessTable
    closed : bool
        Also find the edges from each iteration to the next. A graph that is not closed needs a barrier between
        iterations.

    Returns
    -------
    TaskGraph
    """
    if not isinstance(access_table, AccessTable):
        raise UsageError(
            f"record_graph() takes the accesses of a plan, got {access_table!r}; call it with plan.accesses")
    cdef _Recorder recorder = _Recorder(access_table)
    cdef int32_t n = <int32_t> recorder.num_tasks
    cdef IntVector edges
    cdef Py_ssize_t i, k, length, start, uses
    cdef int32_t which, consumer, p, num_joins = 0
    cdef int32_t[::1] join_of, seen
    with nogil:
        recorder.record(0, not closed)
        if closed:
            recorder.record(n, True)
    memset(&edges, 0, sizeof(edges))
    cdef int32_t first = n if closed else 0   # ids from here on belong to the steady iteration
    join_of = np.full(recorder.list_start.size, -1, np.int32)
    # seen[producer or join, as n + its number]: the consumer that already has an edge from there
    seen = np.full(2 * n + recorder.list_start.size, -1, np.int32)
    try:
        with nogil:
            for i in range(recorder.list_start.size):
                length = recorder.list_length.data[i]
                uses = recorder.list_uses.data[i]
                if length * uses > 2 * (length + uses):  # a join must save more than its own visit costs
                    join_of[i] = n + num_joins
                    num_joins += 1
                    start = recorder.list_start.data[i]
                    for k in range(length):
                        p = recorder.producer.data[start + k]
                        push_edge(&edges, p - first if p >= first else p, join_of[i], p < first)
            for i in range(recorder.wait_consumer.size):
                consumer = recorder.wait_consumer.data[i] - first
                which = recorder.wait_list.data[i]
                if join_of[which] >= 0:
                    if seen[n + join_of[which]] == consumer:
                        continue
                    seen[n + join_of[which]] = consumer
                    push_edge(&edges, join_of[which], consumer, 0)
                    continue
                start = recorder.list_start.data[which]
                for k in range(recorder.list_length.data[which]):
                    p = recorder.producer.data[start + k]
                    if seen[p] == consumer:
                        continue
                    seen[p] = consumer
                    push_edge(&edges, p - first if p >= first else p, consumer, p < first)
        return _flat_graph(n, num_joins, &edges, closed)
    finally:
        free(edges.data)


cdef object _flat_graph(int32_t num_tasks, int32_t num_joins, IntVector *edges, bint closed):
    """Put the edges in order of their source, those within the iteration first: a counting sort."""
    cdef int32_t num_nodes = num_tasks + num_joins, v, place
    cdef Py_ssize_t i
    cdef const Edge *edge = <const Edge *> edges.data
    cdef int32_t[::1] num_intra = np.zeros(num_nodes, np.int32), num_cross = np.zeros(num_nodes, np.int32)
    for i in range(edges.size // 3):
        if edge[i].token:
            num_cross[edge[i].target] += 1
        else:
            num_intra[edge[i].target] += 1
    if closed:
        for v in range(num_tasks):
            if num_intra[v] + num_cross[v] == 0:  # keeps it from running twice at once
                push_edge(edges, v, v, 1)
                num_cross[v] = 1
    cdef Py_ssize_t num_edges = edges.size // 3
    edge = <const Edge *> edges.data
    cdef int32_t[::1] offsets = np.zeros(num_nodes + 1, np.int32), split = np.zeros(num_nodes, np.int32)
    cdef int32_t[::1] successors = np.empty(num_edges, np.int32), following = np.empty(2 * num_nodes, np.int32)
    for i in range(num_edges):
        offsets[edge[i].source + 1] += 1
        split[edge[i].source] += 1 - edge[i].token
    for v in range(num_nodes):
        offsets[v + 1] += offsets[v]
        split[v] += offsets[v]
        following[2 * v] = offsets[v]
        following[2 * v + 1] = split[v]
    for i in range(num_edges):
        v = 2 * edge[i].source + edge[i].token
        place = following[v]
        following[v] += 1
        successors[place] = edge[i].target
    return TaskGraph(
        num_tasks=int(num_tasks),
        num_joins=int(num_joins),
        successor_offsets=np.asarray(offsets),
        successor_split=np.asarray(split),
        successors=np.asarray(successors),
        num_intra=np.asarray(num_intra),
        num_cross=np.asarray(num_cross),
        closed=bool(closed),
    )
