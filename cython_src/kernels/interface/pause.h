/* What a thread does between two looks at what it waits for. */
#ifndef FORKTASK_PAUSE_H
#define FORKTASK_PAUSE_H

#if defined(__x86_64__) || defined(__i386__)
#define ft_pause() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define ft_pause() __asm__ volatile("isb" ::: "memory")
#else
#define ft_pause() __asm__ volatile("" ::: "memory")
#endif

#endif
