/* Counts calls of the memory allocator in a process: preloaded by the exact tier, never linked.
 *
 * malloc, calloc, realloc, and the aligned forms; from every thread, C++'s operator new included, which calls malloc.
 * Not counted: mmap by hand, and Python's own small objects unless PYTHONMALLOC=malloc. The real functions are reached
 * through glibc's own names for them, so nothing is looked up (dlsym itself allocates). */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static int64_t num_calls;

static void count_call(void)
{
    __atomic_fetch_add(&num_calls, 1, __ATOMIC_RELAXED); /* relaxed: read while the counted threads are idle */
}

int64_t forktask_malloc_calls(void)
{
    return __atomic_load_n(&num_calls, __ATOMIC_RELAXED);
}

void *malloc(size_t size)
{
    count_call();
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    count_call();
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    count_call();
    return __libc_realloc(memory, size);
}

void *memalign(size_t alignment, size_t size)
{
    count_call();
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    count_call();
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    if (alignment % sizeof(void *) || alignment & (alignment - 1) || !alignment)
        return EINVAL;
    count_call();
    void *block = __libc_memalign(alignment, size);
    if (!block)
        return ENOMEM;
    *memory = block;
    return 0;
}
