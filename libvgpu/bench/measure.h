/* The process that is measured: bench-vgpu starts itself anew as one, with or without libvgpu. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

/* Measures what `name` says and prints "value MINIMUM MEDIAN": nanoseconds of one call, over many batches of calls; 0
 * on success. `live` is how many allocations are held meanwhile. */
int measure(const char *name, unsigned long live);

#endif
