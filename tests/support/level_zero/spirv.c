/* Queries and changes of SPIR-V modules. The driver has accepted each module before. */
#include "stand_ins.h"

#include <string.h>

enum {
    HEADER = 5,
    OP_ENTRY_POINT = 15,
    OP_TYPE_INT = 21,
    OP_TYPE_FLOAT = 22,
    OP_TYPE_IMAGE = 25,
    OP_TYPE_SAMPLER = 26,
    OP_TYPE_POINTER = 32,
    OP_SPEC_CONSTANT_TRUE = 48,
    OP_SPEC_CONSTANT_FALSE = 49,
    OP_SPEC_CONSTANT = 50,
    OP_FUNCTION = 54,
    OP_FUNCTION_PARAMETER = 55,
    OP_DECORATE = 71,
    DECORATION_SPEC_ID = 1,
    STORAGE_UNIFORM_CONSTANT = 0,
    STORAGE_WORKGROUP = 4,
    STORAGE_CROSS_WORKGROUP = 5,
};

/* Iterates over instructions: the first word is `at[0]`, and there are `length` words. */
#define EACH_INSTRUCTION(words, count, at, length)                                                \
    for (uint32_t *at = (uint32_t *)(words) + HEADER, length;                                     \
         at < (words) + (count) && (length = at[0] >> 16) > 0 && at + length <= (words) + (count); \
         at += length)

static uint32_t opcode(const uint32_t *at) { return at[0] & 0xffff; }

static enum parameter kind_of(const uint32_t *words, size_t count, uint32_t type)
{
    EACH_INSTRUCTION(words, count, at, length)
    {
        if (opcode(at) == OP_TYPE_IMAGE && at[1] == type)
            return IMAGE;
        if (opcode(at) == OP_TYPE_SAMPLER && at[1] == type)
            return SAMPLER;
        if (opcode(at) != OP_TYPE_POINTER || at[1] != type)
            continue;
        switch (at[2]) {
        case STORAGE_UNIFORM_CONSTANT:
        case STORAGE_CROSS_WORKGROUP: return BUFFER;
        case STORAGE_WORKGROUP: return LOCAL;
        }
    }
    return VALUE; /* a structure comes as a pointer to a private copy */
}

int parameters_of(const uint32_t *words, size_t count, const char *kernel,
                  enum parameter parameters[MAX_PARAMETERS])
{
    uint32_t function = 0;
    int found = -1;
    EACH_INSTRUCTION(words, count, at, length)
    {
        if (opcode(at) == OP_ENTRY_POINT && !strcmp((const char *)(at + 3), kernel))
            function = at[2];
        else if (opcode(at) == OP_FUNCTION && found >= 0)
            break;
        else if (opcode(at) == OP_FUNCTION && function && at[2] == function)
            found = 0;
        else if (opcode(at) == OP_FUNCTION_PARAMETER && found >= 0) {
            if (found == MAX_PARAMETERS)
                die("kernel %s has more than %d parameters", kernel, MAX_PARAMETERS);
            parameters[found++] = kind_of(words, count, at[1]);
        }
    }
    return found;
}

/* Returns the size of the type of a number. */
static size_t bytes_of(const uint32_t *words, size_t count, uint32_t type)
{
    EACH_INSTRUCTION(words, count, at, length)
        if ((opcode(at) == OP_TYPE_INT || opcode(at) == OP_TYPE_FLOAT) && at[1] == type)
            return at[2] / 8;
    die("a specialization constant is not a number");
}

void specialize(uint32_t *words, size_t count, uint32_t id, const void *value)
{
    uint32_t target = 0;
    EACH_INSTRUCTION(words, count, at, length)
    {
        if (opcode(at) == OP_DECORATE && length > 3 && at[2] == DECORATION_SPEC_ID && at[3] == id)
            target = at[1];
        if (!target || length < 3 || at[2] != target)
            continue;
        if (opcode(at) == OP_SPEC_CONSTANT) {
            memset(at + 3, 0, (length - 3) * sizeof *at);
            memcpy(at + 3, value, bytes_of(words, count, at[1]));
        }
        else if (opcode(at) == OP_SPEC_CONSTANT_TRUE || opcode(at) == OP_SPEC_CONSTANT_FALSE)
            at[0] = length << 16 |
                    (*(const uint8_t *)value ? OP_SPEC_CONSTANT_TRUE : OP_SPEC_CONSTANT_FALSE);
    }
}
