// Ten functions. They are not inlined into each other here, so that an application can preload any of them.
#define EXPORTED __attribute__((noinline))

EXPORTED float invert(float x) { return 1.0f - x; }
EXPORTED float brighten(float x) { return x + 0.25f; }
EXPORTED float darken(float x) { return x - 0.25f; }
EXPORTED float halve(float x) { return x * 0.5f; }
EXPORTED float twice(float x) { return x * 2.0f; }
EXPORTED float square(float x) { return x * x; }
EXPORTED float root(float x) { return sqrt(x); }
EXPORTED float clip(float x) { return fmin(fmax(x, 0.0f), 1.0f); }
EXPORTED float curve(float x) { return x * x * (3.0f - 2.0f * x); }
EXPORTED float tone(float x) { return clip(brighten(curve(x))); }
