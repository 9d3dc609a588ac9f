//@ check move(particles[32000], 1000, 0.1) over 1024 in 64
//@ check move(particles[31996], 1000, 0.1) over 1024 in 64

typedef struct {
    float position[3];
    float velocity[3];
    float mass;
    int cell;
} Particle;

// Particles as structures, with elements of arrays in them.
kernel void move(global Particle *particles, int n, float step) {
    int i = get_global_id(0);
    if (i >= n)
        return;
    for (int d = 0; d < 3; d++) {
        particles[i].position[d] += step * particles[i].velocity[d];
        if (particles[i].position[d] < 0.0f)
            particles[i].velocity[d] = -particles[i].velocity[d];
    }
    particles[i].cell = (int)particles[i].position[0];
}
