/* Thieves look near first: at their core, then their cache, node, socket, then beyond. */
#include <assert.h>
#include <stdio.h>

#include "tasking/scheduler.h"

int main(void)
{
    enum { THREADS = 8 };
    WorkerState *states = forktask_aligned_zeros(THREADS * sizeof(WorkerState));
    /* Two sockets of one node each; two caches a node; the fourth thread of the first socket shares a core with the first. */
    const int32_t places[THREADS][PLACE_LEVELS] = {{0, 0, 0, 0}, {0, 0, 0, 1}, {0, 0, 2, 2}, {0, 0, 0, 0},
                                                   {1, 1, 4, 4}, {1, 1, 4, 5}, {1, 1, 6, 6}, {1, 1, 6, 7}};
    Scheduler s;
    if (states == NULL || scheduler_open(&s, THREADS, NULL, states, 64, 0) != 0 ||
        scheduler_order_victims(&s, places[0]) != 0)
        return 2;
    const int32_t of_first[THREADS - 1] = {3, 1, 2, 4, 5, 6, 7};
    assert(memcmp(s.victims, of_first, sizeof(of_first)) == 0);
    const int32_t ends[DISTANCES] = {1, 2, 3, 3, 7};
    assert(memcmp(s.ends, ends, sizeof(ends)) == 0);
    int from_far = 0;
    for (int round = 0; round < 1000; round++) {
        scheduler_reset(&s);
        for (int32_t w = 1; w < THREADS; w++)
            deque_push(&s.workers[w].deque, w);
        assert(scheduler_steal(&s, 0) == 3 && scheduler_steal(&s, 0) == 1 && scheduler_steal(&s, 0) == 2);
        int32_t far = scheduler_steal(&s, 0);
        assert(far >= 4);
        from_far |= 1 << far; /* any of those that are equally far */
        for (int left = 0; left < 3; left++)
            assert(scheduler_steal(&s, 0) >= 4);
        assert(scheduler_steal(&s, 0) == DEQUE_EMPTY);
    }
    assert(from_far == 0xF0);
    scheduler_close(&s);
    free(states);
    printf("ok\n");
    return 0;
}
