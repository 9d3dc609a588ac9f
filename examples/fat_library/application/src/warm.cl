float brighten(float x) { return x + 0.5f; }
