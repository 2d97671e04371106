/* load: what both ends share: the clock, a growing buffer, sockets, epoll and the one timer. */
#include <arpa/inet.h>
#include <ctype.h>
#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000LL
#define SEC 1000000000LL
#define MAX_EVENTS 256
#define MAX_REQUEST (64u << 20)

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SEC + t.tv_nsec;
}

/* ---- a growing byte buffer ------------------------------------------------------------------------ */

typedef struct {
    char *p;
    size_t len, cap;
} Buf;

static char *buf_room(Buf *b, size_t more) {
    if (b->len + more > b->cap) {
        b->cap = (b->len + more) * 2;
        b->p = realloc(b->p, b->cap);
        if (!b->p) errx(2, "out of memory");
    }
    return b->p + b->len;
}

static void buf_add(Buf *b, const void *p, size_t n) {
    memcpy(buf_room(b, n), p, n);
    b->len += n;
}

__attribute__((format(printf, 2, 3))) static void buf_printf(Buf *b, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    vsnprintf(buf_room(b, (size_t)n + 1), (size_t)n + 1, format, again);
    b->len += (size_t)n;
    va_end(args);
    va_end(again);
}

static void buf_drop(Buf *b, size_t n) {
    b->len -= n;
    memmove(b->p, b->p + n, b->len);
}

static void buf_free(Buf *b) {
    free(b->p);
    *b = (Buf){0};
}

/* ---- sockets, epoll, the timer --------------------------------------------------------------------- */

static int epoll_fd, timer_fd;
static int64_t timer_armed; /* the time that timer_fd is set to, 0 for none */

static void watch(int op, int fd, uint32_t events, void *who) {
    struct epoll_event e = {.events = events, .data.ptr = who};
    if (epoll_ctl(epoll_fd, op, fd, &e)) err(2, "epoll_ctl");
}

static void loop_open(void) {
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (epoll_fd < 0 || timer_fd < 0) err(2, "epoll");
    watch(EPOLL_CTL_ADD, timer_fd, EPOLLIN, &timer_fd);
}

/* Wake the loop at that time (0: never), with no syscall when it is already set so. */
static void timer_set(int64_t at) {
    if (at == timer_armed) return;
    struct itimerspec t = {.it_value = {.tv_sec = at / SEC, .tv_nsec = at % SEC}};
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
    timer_armed = at;
}

static void timer_fired(void) {
    uint64_t times;
    if (read(timer_fd, &times, sizeof times) > 0) timer_armed = 0;
}

static void no_delay(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* The value of a header in a head of "Name: value\r\n" lines, or NULL; it ends at its \r. */
static const char *header(const char *head, size_t len, const char *name) {
    size_t n = strlen(name);
    for (const char *at = head, *end = head + len; (at = memchr(at, '\n', (size_t)(end - at)));) {
        at++;
        if ((size_t)(end - at) > n && at[n] == ':' && !strncasecmp(at, name, n)) {
            for (at += n + 1; *at == ' ';) at++;
            return at;
        }
    }
    return NULL;
}
