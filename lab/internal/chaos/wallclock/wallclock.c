/* The fault lab preloads this library into PostgreSQL. It adds an offset to the
 * wall clock: the nanoseconds at the start of the file that WALLCLOCK_OFFSET names.
 * The file is mapped, so a change has effect at once and reading takes no lock.
 * PostgreSQL reads the clock in signal handlers, too. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void map(void) {
	const char *path = getenv("WALLCLOCK_OFFSET");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (mapped != MAP_FAILED)
		offset = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
	long failed = syscall(SYS_clock_gettime, clock, now);
	if (failed || !offset || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
		return (int)failed;
	int64_t ns = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + *offset;
	now->tv_sec = ns / INT64_C(1000000000);
	now->tv_nsec = ns % INT64_C(1000000000);
	return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
	struct timespec precise;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &precise))
		return -1;
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *seconds) {
	struct timespec precise;
	if (clock_gettime(CLOCK_REALTIME, &precise))
		return (time_t)-1;
	if (seconds)
		*seconds = precise.tv_sec;
	return precise.tv_sec;
}
