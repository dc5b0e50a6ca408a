/* A recorded and closed task graph (dependences.pyx), as both forms of replay read it. */
#ifndef FORKTASK_RECORDED_GRAPH_H
#define FORKTASK_RECORDED_GRAPH_H

#include <stdint.h>
#include <string.h>

#include "cython_src/kernels/interface/block_kernel.h"

/* Nodes are the plan's tasks, then joins. An edge to the next iteration carries a token. */
typedef struct RecordedGraph {
    int32_t num_tasks, num_nodes, num_loops;
    const LoopRecord *loops;
    const int32_t *task_loop;         /* shape (num_tasks,) */
    const int32_t *successor_offsets; /* shape (num_nodes + 1,) */
    const int32_t *successor_split;   /* shape (num_nodes,): edges from here on carry a token */
    const int32_t *successors;
    const int32_t *num_intra, *num_cross; /* shape (num_nodes,): predecessors without and with a token */
} RecordedGraph;

static inline int32_t graph_num_edges(const RecordedGraph *g)
{
    return g->successor_offsets[g->num_nodes];
}

/* Let a vector clock know what another knows. */
static inline void raise_clock(int32_t *clock, const int32_t *other, int32_t length)
{
    for (int32_t x = 0; x < length; x++)
        clock[x] = clock[x] > other[x] ? clock[x] : other[x];
}

/* List the edges by target. offsets: shape (num_nodes + 2,), zero on entry; predecessors: shape (num_edges,), each
 * 2 * source + token, sources ascending; index_of_edge: shape (num_edges,), where each edge went, or NULL. */
static void graph_list_predecessors(const RecordedGraph *g, int32_t *offsets, int32_t *predecessors,
                                    int32_t *index_of_edge)
{
    for (int32_t i = 0; i < graph_num_edges(g); i++)
        offsets[g->successors[i] + 2]++;
    for (int32_t v = 0; v < g->num_nodes; v++)
        offsets[v + 2] += offsets[v + 1];
    for (int32_t v = 0; v < g->num_nodes; v++)
        for (int32_t i = g->successor_offsets[v]; i < g->successor_offsets[v + 1]; i++) {
            int32_t index = offsets[g->successors[i] + 1]++;
            predecessors[index] = 2 * v + (i >= g->successor_split[v]);
            if (index_of_edge != NULL)
                index_of_edge[i] = index;
        }
}

#endif
