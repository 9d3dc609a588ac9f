//@ check floyd_warshall(distances[40000], paths[40000], 100, 42) over 100x100
//@ check floyd_warshall(distances[40000], paths[40000], 100, 100) over 100x100

// Shortest paths over one more node.
kernel void floyd_warshall(global uint *distances, global uint *paths, uint n, uint pass) {
    uint x = get_global_id(0), y = get_global_id(1);
    uint old = distances[y * n + x];
    uint over = distances[y * n + pass] + distances[pass * n + x];
    if (over < old) {
        distances[y * n + x] = over;
        paths[y * n + x] = pass;
    }
}
