/* race_runtime [rounds [threads [seed]]]: deque, sleep protocol, replay, compiled programs and
 * eager tasks in plain C, made to be compiled with ThreadSanitizer, and without it for many more graphs (`make stress`):
 *     cc -std=gnu11 -g -O1 -fsanitize=thread ...
 * Random layered graphs whose tasks hash what their predecessors wrote; every result is compared with serial order. Data are
 * not atomic, so a missing happens-before edge is a data race that the sanitizer reports. */
#define _GNU_SOURCE
#include <stdio.h>

#include "tasking/eager.h"
#include "tasking/programs/compiler.h"
#include "tasking/replay.h"
#include "tasking/team.h"

#define MAX_TASKS 96
#define CELLS     12

static uint64_t cells[CELLS];
static int32_t reads[MAX_TASKS][2], updates[MAX_TASKS];
static int32_t num_tasks;
static int spins; /* work of a block, so that workers fall asleep now and then */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 29);
}

static int block(const void *args, ptrdiff_t task, const TaskContext *context)
{
    (void)args;
    uint64_t h = mix((uint64_t)task, (uint64_t)context->iteration);
    h = mix(h, cells[reads[task][0]]);
    h = mix(h, cells[reads[task][1]]);
    for (volatile int i = 0; i < (task % 7 == 0 ? spins : 0); i++)
        ;
    cells[updates[task]] = mix(cells[updates[task]], h);
    return 0;
}

static uint64_t seed = 1, random_state;
static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % n;
}

/* Dependences of the cyclic graph by brute force: task b of iteration k + token after task a of iteration k. */
static int touches(int32_t a, int32_t cell)
{
    return updates[a] == cell || reads[a][0] == cell || reads[a][1] == cell;
}

static int conflict(int32_t a, int32_t b)
{
    return touches(a, updates[b]) || touches(b, updates[a]);
}

static int32_t offsets[MAX_TASKS + 1], split[MAX_TASKS], successors[2 * MAX_TASKS * MAX_TASKS];
static int32_t num_intra[MAX_TASKS], num_cross[MAX_TASKS], task_loop[MAX_TASKS];

static void make_graph(void)
{
    int32_t n = 0;
    num_tasks = 8 + (int32_t)random_below(MAX_TASKS - 8);
    memset(num_intra, 0, sizeof(num_intra));
    memset(num_cross, 0, sizeof(num_cross));
    memset(task_loop, 0, sizeof(task_loop));
    for (int32_t t = 0; t < num_tasks; t++) {
        updates[t] = (int32_t)random_below(CELLS);
        reads[t][0] = (int32_t)random_below(CELLS);
        reads[t][1] = (int32_t)random_below(CELLS);
    }
    for (int32_t a = 0; a < num_tasks; a++) {
        offsets[a] = n;
        for (int32_t b = a + 1; b < num_tasks; b++)
            if (conflict(a, b)) {
                successors[n++] = b;
                num_intra[b]++;
            }
        split[a] = n;
        /* All conflicting pairs: each such edge lies on a cycle with one token, for b -> ... -> a is an edge itself. */
        for (int32_t b = 0; b <= a; b++)
            if (conflict(a, b)) {
                successors[n++] = b;
                num_cross[b]++;
            }
    }
    offsets[num_tasks] = n;
}

static void serial(int iterations)
{
    TaskContext context = {0};
    for (context.iteration = 0; context.iteration < iterations; context.iteration++)
        for (int32_t t = 0; t < num_tasks; t++)
            block(NULL, t, &context);
}

static void run(Team *team, TeamJob job, void *argument)
{
    team_start(team, job, argument);
    while (!team_wait(team, -1))
        ;
}

static void check(const uint64_t *expected, const char *what, int round)
{
    if (memcmp(cells, expected, sizeof(cells)) != 0) {
        fprintf(stderr, "seed %llu, round %d: %s differs from serial order\n", (unsigned long long)seed, round, what);
        exit(1);
    }
    memset(cells, 0, sizeof(cells));
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 200, num_threads = argc > 2 ? atoi(argv[2]) : 4;
    random_state = seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    Team team;
    WorkerState *states = forktask_aligned_zeros((size_t)num_threads * sizeof(WorkerState));
    /* Threads by twos on a core, by fours on a node. */
    int32_t *places = calloc((size_t)num_threads * PLACE_LEVELS, sizeof(int32_t));
    for (int w = 0; places != NULL && w < num_threads; w++)
        for (int level = 0; level < PLACE_LEVELS; level++)
            places[w * PLACE_LEVELS + level] = level == 0 ? 0 : level < 3 ? w / 4 : w / 2;
    if (states == NULL || places == NULL || team_open(&team, num_threads, NULL, 2000) != 0)
        return 2;
    for (int w = 0; w < num_threads; w++)
        states[w].failed_task = -1;
    for (int round = 0; round < rounds; round++) {
        int iterations = 1 + (int)random_below(random_below(4) ? 6 : 60);
        uint64_t expected[CELLS];
        random_state += (uint64_t)round;
        spins = random_below(8) ? (random_below(2) ? 500 : 0) : 20000;
        make_graph();
        LoopRecord loop = {block, NULL, 0, num_tasks, 1, 0};
        memset(cells, 0, sizeof(cells));
        serial(iterations);
        memcpy(expected, cells, sizeof(cells));
        memset(cells, 0, sizeof(cells));

        RecordedGraph graph = {num_tasks, num_tasks, 1,          &loop,     task_loop,
                               offsets,   split,     successors, num_intra, num_cross};
        Replay replay;
        if (replay_open(&replay, &graph, num_threads, places, states, 2000) != 0)
            return 2;
        replay_reset(&replay, 0, iterations);
        run(&team, replay_work, &replay);
        check(expected, "replay", round);
        replay_close(&replay);

        Programs programs;
        double cost[MAX_TASKS];
        for (int32_t t = 0; t < num_tasks; t++)
            cost[t] = 1 + random_below(9);
        TaskHints hints = {.cost = cost};
        if (programs_open(&programs, &graph, &hints, num_threads, states, 2000) != 0)
            return 2;
        for (int open = 0; open < 2; open++) {
            for (int w = 0; w < num_threads; w++)
                programs.workers[w].is_open = open || w % 2;
            programs_reset(&programs, 0, iterations);
            run(&team, programs_work, &programs);
            check(expected, "programs", round);
        }
        programs_close(&programs);

        /* One access a cell: read, read, update. */
        static int32_t task_offsets[MAX_TASKS + 1], access_list[3 * MAX_TASKS], list_offsets[CELLS + 1],
            list_cells[CELLS];
        static uint8_t kinds[3 * MAX_TASKS];
        uint8_t wait_after = (uint8_t)random_below(2);
        for (int32_t c = 0; c < CELLS; c++) {
            list_offsets[c] = c;
            list_cells[c] = c;
        }
        list_offsets[CELLS] = CELLS;
        for (int32_t t = 0; t < num_tasks; t++) {
            task_offsets[t] = 3 * t;
            for (int i = 0; i < 3; i++) {
                access_list[3 * t + i] = i < 2 ? reads[t][i] : updates[t];
                kinds[3 * t + i] = i < 2 ? 0 : 2;
            }
        }
        task_offsets[num_tasks] = 3 * num_tasks;
        EagerTable table = {num_tasks, CELLS, task_offsets, kinds, access_list, list_offsets, list_cells};
        Eager eager;
        if (eager_open(&eager, num_threads, places, &loop, 1, states, 2000, &table, &wait_after,
                       4 << random_below(6)) != 0)
            return 2;
        eager_reset(&eager, 0, iterations);
        run(&team, eager_work, &eager);
        check(expected, "eager tasks", round);
        eager_close(&eager);
    }
    team_close(&team);
    free(states);
    free(places);
    printf("ok %d rounds on %d threads\n", rounds, num_threads);
    return 0;
}
