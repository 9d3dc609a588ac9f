/* Makes Intel's driver behave like a version without in-order lists, if `KILN_STAND_INS_OLDER` is set:
 * the driver does not report the extension for events of in-order lists, and its lists keep no order by
 * themselves. Missing order may have no visible effect on an imitated GPU. So a command that does not wait
 * for the command before it on its list, while that command may still run, ends the process. */
#include "stand_ins.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;
typedef int result;

/* Value of `ZE_EVENT_POOL_COUNTER_BASED_EXP_NAME`, the name of the extension. */
static const char *const COUNTED = "ZE_experimental_event_pool_counter_based";

struct extension {
    char name[256];
    uint32_t version;
};

/* The replaced functions of the tables. */
static struct {
    result (*extensions)(handle, uint32_t *, struct extension *);
    result (*reset)(handle);
    result (*status)(handle);
    result (*destroy)(handle);
    result (*barrier)(handle, handle, uint32_t, handle *);
    result (*copy)(handle, void *, const void *, size_t, handle, uint32_t, handle *);
    result (*fill)(handle, void *, const void *, size_t, size_t, handle, uint32_t, handle *);
    result (*copy_pixels)(handle, handle, handle, const void *, const void *, handle, uint32_t, handle *);
    result (*to_memory)(handle, void *, handle, const void *, handle, uint32_t, handle *);
    result (*from_memory)(handle, handle, const void *, const void *, handle, uint32_t, handle *);
    result (*launch)(handle, handle, const void *, handle, uint32_t, handle *);
} next;

/* A list, and the event that signals the end of its latest command. */
struct list {
    struct list *next;
    handle handle, latest;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list *lists;

static void follow(handle of, handle signal, uint32_t waits, handle *wait)
{
    pthread_mutex_lock(&lock);
    struct list *list = lists;
    while (list && list->handle != of)
        list = list->next;
    if (!list) {
        list = allocate(sizeof *list);
        *list = (struct list){ lists, of, NULL };
        lists = list;
    }
    uint32_t at = 0;
    while (at < waits && wait[at] != list->latest)
        at++;
    if (list->latest && at == waits && next.status(list->latest))
        die("a command does not wait for the one before it on its list, which keeps no order");
    list->latest = signal;
    pthread_mutex_unlock(&lock);
}

static result barrier(handle list, handle signal, uint32_t waits, handle *wait)
{
    follow(list, signal, waits, wait);
    return next.barrier(list, signal, waits, wait);
}

static result copy(handle list, void *to, const void *from, size_t bytes, handle signal, uint32_t waits,
                   handle *wait)
{
    follow(list, signal, waits, wait);
    return next.copy(list, to, from, bytes, signal, waits, wait);
}

static result fill(handle list, void *to, const void *pattern, size_t size, size_t bytes, handle signal,
                   uint32_t waits, handle *wait)
{
    follow(list, signal, waits, wait);
    return next.fill(list, to, pattern, size, bytes, signal, waits, wait);
}

static result copy_pixels(handle list, handle to, handle from, const void *target, const void *source,
                          handle signal, uint32_t waits, handle *wait)
{
    follow(list, signal, waits, wait);
    return next.copy_pixels(list, to, from, target, source, signal, waits, wait);
}

static result to_memory(handle list, void *to, handle from, const void *region, handle signal, uint32_t waits,
                        handle *wait)
{
    follow(list, signal, waits, wait);
    return next.to_memory(list, to, from, region, signal, waits, wait);
}

static result from_memory(handle list, handle to, const void *from, const void *region, handle signal,
                          uint32_t waits, handle *wait)
{
    follow(list, signal, waits, wait);
    return next.from_memory(list, to, from, region, signal, waits, wait);
}

static result launch(handle list, handle kernel, const void *groups, handle signal, uint32_t waits,
                     handle *wait)
{
    follow(list, signal, waits, wait);
    return next.launch(list, kernel, groups, signal, waits, wait);
}

/* Forgets an event that will signal the end of another command, or a list that is destroyed. */
static void forget(handle of)
{
    pthread_mutex_lock(&lock);
    for (struct list *list = lists; list; list = list->next)
        if (list->latest == of || list->handle == of)
            list->latest = NULL;
    pthread_mutex_unlock(&lock);
}

static result reset(handle event)
{
    forget(event);
    return next.reset(event);
}

static result destroy(handle list)
{
    forget(list);
    return next.destroy(list);
}

static result extensions(handle driver, uint32_t *count, struct extension *found)
{
    result answer = next.extensions(driver, count, found);
    for (uint32_t i = 0; found && !answer && i < *count; i++)
        if (!strcmp(found[i].name, COUNTED))
            strcpy(found[i].name, "unknown");
    return answer;
}

#define REPLACE(place, function)                                              \
    if (getenv("KILN_STAND_INS_OLDER") && table[place] != (void *)function) { \
        *(void **)&next.function = table[place];                              \
        table[place] = (void *)function;                                      \
    }

void older_driver(void **table)
{
    REPLACE(4, extensions)
}

void older_events(void **table)
{
    next.status = (result (*)(handle))table[4];
    REPLACE(5, reset)
}

void older_lists(void **table)
{
    REPLACE(2, destroy) REPLACE(6, barrier) REPLACE(8, copy) REPLACE(9, fill)
    REPLACE(13, copy_pixels) REPLACE(14, to_memory) REPLACE(15, from_memory) REPLACE(22, launch)
}
