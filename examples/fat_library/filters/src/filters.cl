// A filter that uses a function of whichever library the application has.
float invert(float x);

__attribute__((noinline)) float filter(float x) { return invert(x) * 0.5f; }
