//@ check breadth_first_search(starts[4004], edges[20000], levels[4000], changed[4], 1000, 3) over 1024 in 64
//@ guard breadth_first_search(starts[4004], edges[20000], levels[4000], changed[4], 1000, 3) over 1024 in 64

// Level of a breadth-first search: nodes of the frontier mark their neighbours.
kernel void breadth_first_search(global const int *starts, global const int *edges, global int *levels,
                                 global int *changed, int nodes, int level) {
    int node = get_global_id(0);
    if (node >= nodes || levels[node] != level)
        return;
    for (int k = starts[node]; k < starts[node + 1]; k++) {
        int neighbour = edges[k];
        if (levels[neighbour] < 0) {
            levels[neighbour] = level + 1;
            *changed = 1;
        }
    }
}
