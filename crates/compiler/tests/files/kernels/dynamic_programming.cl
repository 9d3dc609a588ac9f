//@ check path_step(wall[400000], from[4000], to[4000], 1000, 7) over 1024 in 64
//@ check path_step(wall[400000], from[4000], to[4000], 1000, 100) over 1024 in 64

// Step of a cheapest path through a grid, whose row is an argument.
kernel void path_step(global const int *wall, global const int *from, global int *to, int columns, int row) {
    int x = get_global_id(0);
    if (x >= columns)
        return;
    int least = from[x];
    if (x > 0)
        least = min(least, from[x - 1]);
    if (x < columns - 1)
        least = min(least, from[x + 1]);
    to[x] = least + wall[row * columns + x];
}
