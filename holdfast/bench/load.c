/*
 * load: the load generator of the benchmark, both ends of it in one program.
 *
 *   load upstream --port P            a fake OpenAI-compatible model server
 *   load client --url H:P --path ...  streams against it, or against anything in between
 *   load exec CMD ARGS...             becomes CMD, but bound to die with the process that started it
 *
 * Why C: both ends share one core, and must cost so little there that what is measured is the server
 * between them. Why one program: both agree on the stamp. Each token that the upstream sends is a text
 * "@<CLOCK_MONOTONIC ns> ...", a clock that all processes of a machine share, so the client knows the age
 * of a token however many hops, re-encodings and merges lie between. The client counts stamps, not
 * frames: a server may merge deltas as it likes.
 *
 * How a stream runs is said by the prompt: [[bench n=500 pace_us=20000]] is 500 tokens, one each 20 ms;
 * pace 0 is as fast as the socket takes them. A paced token is made when it is due whether or not the
 * socket takes it, so a reader that pushes back shows as latency and not as a slower model.
 *
 * Single-threaded, level-triggered epoll, one timerfd for all timers (epoll's own timeout is in whole
 * milliseconds, which would clump the tokens of different streams into bursts). Linux only.
 */
#define _GNU_SOURCE
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

/* ==== upstream ======================================================================================= */

typedef struct {
    int fd;
    Buf in, out;
    size_t written;            /* of out */
    bool answering, ended;     /* an answer is under way; all of it is made, if not written */
    bool usage, closing;       /* it ends with a usage chunk; the connection ends with it */
    bool want_out;             /* EPOLLOUT is armed */
    unsigned n, next;          /* tokens to send, tokens made */
    int64_t pace, due;
    size_t place;              /* 1 + index in the heap of timers, 0 when not in it */
} Conn;

static struct {
    Conn **heap; /* binary heap by due: heap[0] is the next */
    size_t count, cap;
} timers;

static struct {
    unsigned long requests, tokens, late, cut, open, open_max;
    int64_t late_max;
} up;

#define LATE_NS (5 * MS)
#define FLOOD_BYTES (32u << 10)

static void heap_put(size_t i, Conn *c) {
    timers.heap[i] = c;
    c->place = i + 1;
}

/* Find c's place, beginning at the free slot i: up while it is due earlier, else down. */
static void heap_sift(size_t i, Conn *c) {
    for (size_t parent; i && timers.heap[parent = (i - 1) / 2]->due > c->due; i = parent)
        heap_put(i, timers.heap[parent]);
    for (size_t child; (child = 2 * i + 1) < timers.count; i = child) {
        if (child + 1 < timers.count && timers.heap[child + 1]->due < timers.heap[child]->due) child++;
        if (timers.heap[child]->due >= c->due) break;
        heap_put(i, timers.heap[child]);
    }
    heap_put(i, c);
}

static void heap_push(Conn *c) {
    if (timers.count == timers.cap) {
        timers.cap = timers.cap ? timers.cap * 2 : 1024;
        timers.heap = realloc(timers.heap, timers.cap * sizeof *timers.heap);
        if (!timers.heap) errx(2, "out of memory");
    }
    timers.heap[timers.count] = c; /* so that the way down reads no stale slot */
    timers.count++;
    heap_sift(timers.count - 1, c);
}

static void heap_remove(Conn *c) {
    size_t i = c->place - 1;
    Conn *last = timers.heap[--timers.count];
    if (last != c) heap_sift(i, last);
    c->place = 0;
}

static void conn_close(Conn *c) {
    if (c->answering) up.cut++;
    if (c->place) heap_remove(c);
    up.open--;
    close(c->fd);
    buf_free(&c->in);
    buf_free(&c->out);
    free(c);
}

#define CHUNK_HEAD                                                                                  \
    "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1763200000," \
    "\"model\":\"bench\",\"system_fingerprint\":\"fp_bench\",\"choices\":["
#define CHOICE(delta, finish) "{\"index\":0,\"delta\":" delta ",\"logprobs\":null,\"finish_reason\":" finish "}"
#define USAGE "\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":%u,\"total_tokens\":%u}"

/* One SSE event as one HTTP chunk, which is how model servers send it. */
static void put_event(Conn *c, const char *event, size_t n) {
    buf_printf(&c->out, "%zx\r\n", n);
    buf_add(&c->out, event, n);
    buf_add(&c->out, "\r\n", 2);
}

/* The stamp, padded with dots to 20 bytes, a long token. */
static size_t stamp(char *to) {
    int n = sprintf(to, "@%lld ", (long long)now_ns());
    while (n < 19) to[n++] = '.';
    to[n++] = ' ';
    to[n] = 0;
    return (size_t)n;
}

static void put_token(Conn *c) {
    char text[40], event[400];
    stamp(text);
    put_event(c, event, (size_t)sprintf(event, CHUNK_HEAD CHOICE("{\"content\":\"%s\"}", "null") "]}\n\n", text));
    c->next++;
    up.tokens++;
}

static void put_end(Conn *c) {
    static const char finish[] = CHUNK_HEAD CHOICE("{}", "\"stop\"") "]}\n\n";
    char usage[400];
    put_event(c, finish, sizeof finish - 1);
    if (c->usage) put_event(c, usage, (size_t)sprintf(usage, CHUNK_HEAD "]," USAGE "}\n\n", c->n, c->n + 16));
    put_event(c, "data: [DONE]\n\n", 14);
    buf_add(&c->out, "0\r\n\r\n", 5);
    c->ended = true;
}

/* Make the tokens that are due: of a flood one write's worth, then it is the next stream's turn. */
static void conn_make(Conn *c) {
    int64_t now = now_ns();
    if (c->ended || (c->pace && c->due > now)) return;
    if (c->place) heap_remove(c);
    while (c->next < c->n && (c->pace ? c->due <= now : c->out.len - c->written < FLOOD_BYTES)) {
        int64_t late = c->pace ? now - c->due : 0;
        if (late > LATE_NS) up.late++;
        if (late > up.late_max) up.late_max = late;
        put_token(c);
        c->due += c->pace;
    }
    if (c->next >= c->n) put_end(c);
    else if (c->pace) heap_push(c);
}

/* Write what is there. False when the connection is gone, and freed. */
static bool conn_flush(Conn *c) {
    while (c->written < c->out.len) {
        ssize_t n = write(c->fd, c->out.p + c->written, c->out.len - c->written);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) return conn_close(c), false;
        c->written += (size_t)n;
    }
    if (c->written == c->out.len) c->written = c->out.len = 0;
    bool want_out = c->out.len || (!c->ended && !c->pace);
    if (want_out != c->want_out) watch(EPOLL_CTL_MOD, c->fd, EPOLLIN | (want_out ? EPOLLOUT : 0u), c);
    c->want_out = want_out;
    return true;
}

static void answer_json(Conn *c, const char *status, const char *body, size_t n) {
    buf_printf(&c->out, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", status, n);
    buf_add(&c->out, body, n);
    c->ended = true;
}

static void answer_whole(Conn *c) {
    Buf b = {0};
    char text[40];
    buf_printf(&b, "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1763200000,"
                   "\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"");
    for (; c->next < c->n; c->next++, up.tokens++) buf_add(&b, text, stamp(text));
    buf_printf(&b, "\"},\"logprobs\":null,\"finish_reason\":\"stop\"}]," USAGE "}", c->n, c->n + 16);
    answer_json(c, "200 OK", b.p, b.len);
    buf_free(&b);
}

/* Whether the body sets this field to true, in either common spelling. */
static bool says(const char *body, size_t n, const char *field) {
    char text[64];
    size_t m = (size_t)sprintf(text, "\"%s\":true", field);
    if (memmem(body, n, text, m)) return true;
    m = (size_t)sprintf(text, "\"%s\": true", field);
    return memmem(body, n, text, m);
}

/* Begin to answer a chat request. The last order in its body counts: earlier ones are history. */
static void answer_chat(Conn *c, const char *body, size_t n) {
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                               "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
    static const char role[] = CHUNK_HEAD CHOICE("{\"role\":\"assistant\",\"content\":\"\"}", "null") "]}\n\n";
    long long pace_us = 0;
    c->n = 3;
    for (const char *at = body; (at = memmem(at, n - (size_t)(at - body), "[[bench ", 8)); at += 8)
        sscanf(at, "[[bench n=%u pace_us=%lld]]", &c->n, &pace_us);
    c->next = 0;
    c->pace = pace_us * 1000;
    c->due = now_ns();
    c->usage = says(body, n, "include_usage");
    if (!says(body, n, "stream")) {
        answer_whole(c);
        return;
    }
    buf_add(&c->out, head, sizeof head - 1);
    put_event(c, role, sizeof role - 1);
}

static void answer_get(Conn *c, const char *path) {
    static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\","
                                 "\"created\":1763200000,\"owned_by\":\"bench\"}]}";
    static const char none[] = "{\"error\":{\"message\":\"no such route\",\"type\":\"invalid_request_error\"}}";
    if (!strncmp(path, "/v1/models", 10)) {
        answer_json(c, "200 OK", models, sizeof models - 1);
    } else if (!strncmp(path, "/bench/stats", 12)) { /* late_max and open_max are since the last look */
        char text[300];
        int n = sprintf(text, "{\"requests\":%lu,\"tokens\":%lu,\"late\":%lu,\"late_max_us\":%lld,\"cut\":%lu,"
                              "\"open\":%lu,\"open_max\":%lu}",
                        up.requests, up.tokens, up.late, (long long)up.late_max / 1000, up.cut, up.open, up.open_max);
        up.late_max = 0;
        up.open_max = up.open;
        answer_json(c, "200 OK", text, (size_t)n);
    } else if (!strncmp(path, "/bench/release", 14)) { /* the next token of every paced stream is due now */
        int64_t now = now_ns();
        for (size_t i = 0; i < timers.count; i++) /* min(due, now) keeps the order of the heap */
            if (timers.heap[i]->due > now) timers.heap[i]->due = now;
        answer_json(c, "200 OK", "{}", 2);
    } else {
        answer_json(c, "404 Not Found", none, sizeof none - 1);
    }
}

/* Begin to answer the next request if all of it is there. False when it is not, or the connection is gone. */
static bool conn_request(Conn *c) {
    static const char chat[] = "POST /v1/chat/completions";
    char *end = c->in.len ? memmem(c->in.p, c->in.len, "\r\n\r\n", 4) : NULL;
    if (!end) return false;
    size_t head = (size_t)(end - c->in.p) + 4;
    const char *length = header(c->in.p, head, "content-length"), *connection = header(c->in.p, head, "connection");
    size_t body = length ? strtoul(length, NULL, 10) : 0;
    if (body > MAX_REQUEST || header(c->in.p, head, "transfer-encoding")) return conn_close(c), false;
    if (c->in.len < head + body) return false;
    c->answering = true;
    c->ended = false;
    c->closing = connection && !strncasecmp(connection, "close", 5);
    up.requests++;
    if (head > sizeof chat && !memcmp(c->in.p, chat, sizeof chat - 1)) answer_chat(c, c->in.p + head, body);
    else answer_get(c, c->in.p + (memcmp(c->in.p, "GET ", 4) ? 0 : 4));
    buf_drop(&c->in, head + body);
    return true;
}

/* All that a connection can do now: go on with its answer, then with the next request. */
static void conn_step(Conn *c) {
    do {
        if (!c->answering) continue;
        conn_make(c);
        if (!conn_flush(c) || !c->ended || c->out.len) return;
        c->answering = false;
        if (c->closing) {
            conn_close(c);
            return;
        }
    } while (conn_request(c));
}

static void conn_ready(Conn *c, uint32_t events) {
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        ssize_t n = read(c->fd, buf_room(&c->in, 16385), 16384);
        if (n == 0 || (n < 0 && errno != EAGAIN) || c->in.len > MAX_REQUEST + 65536) {
            conn_close(c);
            return;
        }
        if (n > 0) c->in.len += (size_t)n;
        c->in.p[c->in.len] = 0; /* for sscanf */
    }
    conn_step(c);
}

static void run_timers(void) {
    for (int64_t now = now_ns(); timers.count && timers.heap[0]->due <= now;) conn_step(timers.heap[0]);
    timer_set(timers.count ? timers.heap[0]->due : 0);
}

static void conn_accept(int listener) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        Conn *c = calloc(1, sizeof *c);
        if (!c) errx(2, "out of memory");
        c->fd = fd;
        no_delay(fd);
        watch(EPOLL_CTL_ADD, fd, EPOLLIN, c);
        if (++up.open > up.open_max) up.open_max = up.open;
    }
}

static int upstream_main(unsigned port) {
    loop_open();
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t size = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 4096)) err(2, "port %u", port);
    getsockname(listener, (void *)&at, &size);
    watch(EPOLL_CTL_ADD, listener, EPOLLIN, &epoll_fd);
    printf("listening on http://127.0.0.1:%d\n", ntohs(at.sin_port));
    fflush(stdout);
    for (struct epoll_event events[MAX_EVENTS];;) {
        int n = epoll_wait(epoll_fd, events, MAX_EVENTS, -1);
        /* A connection is closed only in its own event or in run_timers, after the batch: no event of
         * this batch can point to a freed one. */
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &timer_fd) timer_fired();
            else if (events[i].data.ptr == &epoll_fd) conn_accept(listener);
            else conn_ready(events[i].data.ptr, events[i].events);
        }
        run_timers();
    }
}

/* ==== client ========================================================================================= */

/* Log-linear histogram of ns: 32 steps per power of two, so 3 % exact, in constant memory. */
#define STEPS 32
typedef struct {
    uintmax_t cells[48 * STEPS], count;
    int64_t max;
} Hist;

static void hist_add(Hist *h, int64_t ns) {
    uint64_t v = ns > 0 ? (uint64_t)ns : 0;
    int shift = v < 2 * STEPS ? 0 : 58 - __builtin_clzll(v); /* leaves v >> shift in [32, 64) */
    size_t cell = (size_t)shift * STEPS + (size_t)(v >> shift);
    if (cell < sizeof h->cells / sizeof *h->cells) h->cells[cell]++;
    if (ns > h->max) h->max = ns;
    h->count++;
}

static double hist_us(const Hist *h, double share) {
    uint64_t left = (uint64_t)((double)h->count * share) + 1;
    for (size_t cell = 0; cell < sizeof h->cells / sizeof *h->cells; cell++) {
        if (h->cells[cell] < left) {
            left -= h->cells[cell];
            continue;
        }
        size_t shift = cell < 2 * STEPS ? 0 : cell / STEPS - 1;
        double low = (double)((uint64_t)(cell - shift * STEPS) << shift), step = (double)(1ULL << shift);
        return (low + step / 2 < (double)h->max ? low + step / 2 : (double)h->max) / 1000;
    }
    return (double)h->max / 1000;
}

typedef enum { HEAD, SIZE, DATA, DATA_END, TRAILER, LENGTH, TO_CLOSE } Part;

typedef struct {
    int fd;              /* -1: no connection */
    Part part;           /* where in the answer we are */
    bool busy, connecting, want_out, sse, done, first_seen, bad_size;
    int status;
    size_t left, sent;   /* of the part; of the request */
    Buf line;            /* head, then the SSE line (or the whole JSON body) that is not complete yet */
    unsigned tokens;
    int64_t start_at, sent_at, deadline;
} Stream;

static struct {
    const char *url, *path, *key, *mode, *model, *extra, *seconds;
    unsigned streams, n, rounds, ramp_ms, pace_us, whole; /* whole: not streamed */
} want = {.path = "/v1/chat/completions", .key = "", .mode = "paced", .model = "hermes-agent", .extra = "{}",
          .streams = 1, .n = 400, .rounds = 1, .pace_us = 20000, .seconds = "30"};

static struct {
    Hist latency, first, request;
    uintmax_t tokens, delivered, on_time, finished, errors, wrong;
    char sample[300];
    int64_t last;
} got;

static Buf request;
static size_t nonce; /* where in it a number is that each job gets anew, so that no two ask the same */
static struct sockaddr_in server;
static const char *delta_mark; /* what a frame must say to hold new text and not a repetition of it */
static uint64_t jobs_left;
static unsigned active;
static int64_t stop_at, next_start;

#define ON_TIME (100 * MS)
#define GRACE SEC

static void note_error(const char *text, size_t n) {
    if (got.sample[0]) return;
    if (n >= sizeof got.sample) n = sizeof got.sample - 1;
    for (size_t i = 0; i < n; i++)
        got.sample[i] = text[i] == '"' ? '\'' : text[i] == '\\' || (unsigned char)text[i] < ' ' ? ' ' : text[i];
    got.sample[n] = 0;
}

static void count_stamps(Stream *s, const char *text, size_t n, int64_t now) {
    for (const char *at = text, *end = text + n; (at = memchr(at, '@', (size_t)(end - at)));) {
        int64_t ns = 0;
        const char *digits = ++at;
        for (; at < end && *at >= '0' && *at <= '9'; at++) ns = ns * 10 + (*at - '0');
        if (at - digits < 9 || at == end || *at != ' ') continue;
        s->tokens++;
        got.tokens++;
        got.last = now;
        hist_add(&got.latency, now - ns);
        if (now <= s->deadline) {
            got.delivered++;
            got.on_time += now - ns < ON_TIME;
        }
        if (!s->first_seen) hist_add(&got.first, now - s->sent_at);
        s->first_seen = true;
    }
}

static void sse_line(Stream *s, const char *line, size_t n, int64_t now) {
    if (n && line[n - 1] == '\r') n--;
    if (n < 5 || memcmp(line, "data:", 5)) return;
    if (memmem(line, n < 14 ? n : 14, "[DONE]", 6)) s->done = true;
    else if (memmem(line, n, delta_mark, strlen(delta_mark))) count_stamps(s, line, n, now);
    else if (memmem(line, n, "\"error\":{", 9)) note_error(line, n);
}

/* Body bytes, cut anywhere: whole lines are read where they lie, the rest waits in s->line. */
static void body_bytes(Stream *s, const char *p, size_t n, int64_t now) {
    const char *end = p + n;
    if (s->sse && s->status == 200) {
        for (const char *eol; (eol = memchr(p, '\n', (size_t)(end - p))); p = eol + 1) {
            if (s->line.len) {
                buf_add(&s->line, p, (size_t)(eol - p));
                sse_line(s, s->line.p, s->line.len, now);
                s->line.len = 0;
            } else {
                sse_line(s, p, (size_t)(eol - p), now);
            }
        }
    }
    buf_add(&s->line, p, (size_t)(end - p));
}

static void head_done(Stream *s) {
    const char *head = s->line.p;
    size_t n = s->line.len;
    const char *type = header(head, n, "content-type"), *length = header(head, n, "content-length");
    const char *coding = header(head, n, "transfer-encoding");
    s->status = n > 12 ? atoi(head + 9) : 0;
    s->sse = type && !strncasecmp(type, "text/event-stream", 17);
    s->part = coding && !strncasecmp(coding, "chunked", 7) ? SIZE : length ? LENGTH : TO_CLOSE;
    s->left = length ? strtoul(length, NULL, 10) : 0;
    s->line.len = 0;
}

/* One byte of the framing of chunked coding. True when it was the last of the answer. */
static bool chunk_byte(Stream *s, char c) {
    if (s->part == DATA_END) {
        if (c == '\n') s->part = SIZE, s->left = 0, s->bad_size = false;
    } else if (s->part == TRAILER) { /* left counts the bytes of the trailer line */
        if (c == '\n' && !s->left) return true;
        s->left = c == '\n' ? 0 : s->left + (c != '\r');
    } else if (c == '\n') {
        s->part = s->left ? DATA : TRAILER;
    } else if (isxdigit((unsigned char)c) && !s->bad_size) {
        s->left = s->left * 16 + (size_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    } else {
        s->bad_size = true; /* an extension or \r: the size is over */
    }
    return false;
}

/* Feed bytes of an answer. True when the answer is complete. */
static bool answer_bytes(Stream *s, const char *p, size_t n, int64_t now) {
    for (const char *end = p + n; p < end;) {
        if (s->part == HEAD) {
            buf_add(&s->line, p, (size_t)(end - p));
            char *eoh = memmem(s->line.p, s->line.len, "\r\n\r\n", 4);
            if (!eoh) return false;
            size_t rest = s->line.len - (size_t)(eoh + 4 - s->line.p);
            s->line.len -= rest;
            p = end - rest;
            head_done(s);
            if (s->part == LENGTH && !s->left) return true;
        } else if (s->part == DATA || s->part == LENGTH || s->part == TO_CLOSE) {
            size_t take = (size_t)(end - p);
            if (s->part != TO_CLOSE && take > s->left) take = s->left;
            body_bytes(s, p, take, now);
            p += take;
            if (s->part == TO_CLOSE || (s->left -= take)) continue;
            if (s->part == LENGTH) return true;
            s->part = DATA_END;
        } else if (chunk_byte(s, *p++)) {
            return true;
        }
    }
    return false;
}

static void stream_hang_up(Stream *s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

static void stream_start(Stream *s);

/* The answer is over, for better or worse: count it, then take the next job or leave. */
static void stream_finish(Stream *s, const char *failure, int64_t now) {
    if (!failure && s->status == 200 && !s->sse) count_stamps(s, s->line.p, s->line.len, now);
    s->busy = false;
    bool failed = failure || s->status != 200;
    if (failed) {
        got.errors++;
        note_error(failure ? failure : s->line.p, failure ? strlen(failure) : s->line.len);
        stream_hang_up(s);
    } else if (s->sse ? s->tokens != want.n || !s->done : s->tokens < want.n) {
        got.wrong++; /* a body may repeat its text, a stream has each token once */
    } else {
        got.finished++;
        hist_add(&got.request, now - s->sent_at);
        got.last = now;
    }
    if (jobs_left && now < stop_at && failed) {
        s->start_at = now + 10 * MS; /* a server that refuses is not to be hammered */
        if (s->start_at < next_start) next_start = s->start_at;
    } else if (jobs_left && now < stop_at) {
        stream_start(s);
    } else {
        stream_hang_up(s);
        active--;
    }
}

static void stream_send(Stream *s, int64_t now) {
    if (!s->sent) {
        char number[24];
        snprintf(number, sizeof number, "%019lld", (long long)now);
        memcpy(request.p + nonce, number, 19);
        s->sent_at = now;
        s->deadline = now + (int64_t)want.n * want.pace_us * 1000 + GRACE;
        if (!want.pace_us) s->deadline = INT64_MAX;
    }
    ssize_t n = write(s->fd, request.p + s->sent, request.len - s->sent);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        stream_finish(s, strerror(errno), now);
        return;
    }
    if (n > 0) s->sent += (size_t)n;
    bool more = s->sent < request.len;
    if (more != s->want_out) watch(EPOLL_CTL_MOD, s->fd, EPOLLIN | (more ? EPOLLOUT : 0u), s);
    s->want_out = more;
}

static void stream_start(Stream *s) {
    jobs_left--;
    s->busy = true;
    s->part = HEAD;
    s->tokens = 0;
    s->sent = s->left = s->line.len = 0;
    s->sse = s->done = s->first_seen = s->bad_size = false;
    s->status = 0;
    if (s->fd >= 0) {
        stream_send(s, now_ns());
        return;
    }
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->fd < 0) err(2, "socket");
    no_delay(s->fd);
    s->connecting = connect(s->fd, (void *)&server, sizeof server) && errno == EINPROGRESS;
    s->want_out = true;
    watch(EPOLL_CTL_ADD, s->fd, EPOLLIN | EPOLLOUT, s);
    if (!s->connecting) stream_send(s, now_ns());
}

static void stream_ready(Stream *s, uint32_t events) {
    static char bytes[65536];
    if (s->fd < 0) return;
    if (s->busy && (events & EPOLLOUT)) {
        int failed = 0;
        socklen_t size = sizeof failed;
        if (s->connecting) getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &failed, &size);
        s->connecting = false;
        if (failed) {
            stream_finish(s, strerror(failed), now_ns());
            return;
        }
        stream_send(s, now_ns());
        if (s->fd < 0 || !(events & EPOLLIN)) return;
    }
    ssize_t n = read(s->fd, bytes, sizeof bytes);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    int64_t now = now_ns();
    if (n > 0 && s->busy) {
        if (answer_bytes(s, bytes, (size_t)n, now)) stream_finish(s, NULL, now);
        return;
    }
    if (!s->busy) {
        stream_hang_up(s); /* the server ended an idle connection: the next job opens another */
        return;
    }
    bool whole = n == 0 && s->part == TO_CLOSE;
    stream_hang_up(s);
    stream_finish(s, whole ? NULL : n ? strerror(errno) : "closed in mid-answer", now);
}

/* Start the streams whose time has come, and note when the next one's will. */
static void start_due(Stream *streams, int64_t now) {
    next_start = stop_at;
    for (unsigned i = 0; i < want.streams; i++) {
        Stream *s = &streams[i];
        if (!s->start_at) continue;
        if (!jobs_left) s->start_at = 0, active--;
        else if (s->start_at <= now) s->start_at = 0, stream_start(s);
        if (s->start_at && s->start_at < next_start) next_start = s->start_at;
    }
}

static void read_address(void) {
    char host[64];
    const char *at = strstr(want.url, "://");
    unsigned port;
    if (sscanf(at ? at + 3 : want.url, "%63[^:/]:%u", host, &port) != 2) errx(2, "--url wants host:port");
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, !strcmp(host, "localhost") ? "127.0.0.1" : host, &server.sin_addr) != 1)
        errx(2, "--url wants an IPv4 address, not %s", host);
}

static void make_request(void) {
    Buf body = {0};
    bool responses = strstr(want.path, "/responses");
    size_t extra = strlen(want.extra);
    if (extra < 2 || want.extra[0] != '{' || want.extra[extra - 1] != '}') errx(2, "--body-extra wants a JSON object");
    delta_mark = responses ? "response.output_text.delta" : "chat.completion.chunk";
    buf_printf(&body, "{\"model\":\"%s\",\"stream\":%s,", want.model, want.whole ? "false" : "true");
    buf_printf(&body, responses ? "\"input\":\"" : "\"messages\":[{\"role\":\"user\",\"content\":\"");
    nonce = body.len;
    buf_printf(&body, "%019d [[bench n=%u pace_us=%u]]\"%s", 0, want.n, want.pace_us, responses ? "" : "}]");
    buf_printf(&body, "%s%s", extra > 2 ? "," : "", want.extra + 1);
    buf_printf(&request, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n",
               want.path, body.len);
    if (*want.key) buf_printf(&request, "Authorization: Bearer %s\r\n", want.key);
    nonce += request.len + 2;
    buf_printf(&request, "\r\n%s", body.p);
    buf_free(&body);
}

static void print_hist(const char *name, const Hist *h) {
    printf(",\"%s\":{\"count\":%ju,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}", name, h->count,
           hist_us(h, 0.5), hist_us(h, 0.9), hist_us(h, 0.99), hist_us(h, 0.999), (double)h->max / 1000);
}

static void print_result(int64_t began, uintmax_t jobs, uintmax_t unfinished) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    double cpu = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                 (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
    double span = got.last > began ? (double)(got.last - began) / 1e9 : 1;
    uintmax_t expected = strcmp(want.mode, "tiny") ? jobs * want.n : got.tokens;
    double base = expected ? (double)expected : 1;
    printf("{\"mode\":\"%s\",\"streams\":%u,\"n\":%u,\"pace_us\":%u,\"span_s\":%.4f,\"cpu_s\":%.4f,", want.mode,
           want.streams, want.n, want.pace_us, span, cpu);
    printf("\"expected\":%ju,\"tokens\":%ju,\"delivered_share\":%.5f,\"on_time_share\":%.5f,", expected, got.tokens,
           (double)got.delivered / base, (double)got.on_time / base);
    printf("\"tokens_per_s\":%.1f,\"requests\":%ju,\"requests_per_s\":%.1f,", (double)got.tokens / span, got.finished,
           (double)got.finished / span);
    printf("\"errors\":%ju,\"wrong\":%ju,\"unfinished\":%ju,\"error_sample\":\"%s\"", got.errors, got.wrong, unfinished,
           got.sample);
    print_hist("latency_us", &got.latency);
    print_hist("first_us", &got.first);
    print_hist("request_us", &got.request);
    printf("}\n");
}

/* Modes: paced (one job per stream, starts spread over the ramp), flood (pace 0, all at once), first
 * (--streams jobs one after the other), tiny (--streams at a time for --seconds). --rounds repeats. */
static int client_main(void) {
    bool tiny = !strcmp(want.mode, "tiny"), first = !strcmp(want.mode, "first"), paced = !strcmp(want.mode, "paced");
    if (!tiny && !first && !paced && strcmp(want.mode, "flood")) errx(2, "no mode %s", want.mode);
    if (!want.url || !want.streams || !want.n || !want.rounds) errx(2, "client wants --url, --streams, --n");
    if (!first && !paced) want.pace_us = 0;
    uint64_t jobs = (uint64_t)want.streams * want.rounds;
    jobs_left = tiny ? UINT64_MAX : jobs;
    if (first) want.streams = 1;
    read_address();
    make_request();
    loop_open();
    int64_t began = now_ns(), nominal = (int64_t)want.n * want.pace_us * 1000 * want.rounds;
    stop_at = began + (int64_t)(atof(want.seconds) * (double)SEC);
    if (paced) stop_at = began + want.ramp_ms * MS + nominal + GRACE + SEC / 2;
    Stream *streams = calloc(want.streams, sizeof *streams);
    if (!streams) errx(2, "out of memory");
    srand(1); /* the same phases in every run: uniform over the ramp, so bound to no multiple of the pace */
    for (unsigned i = 0; i < want.streams; i++) {
        streams[i].fd = -1;
        streams[i].start_at = began + (int64_t)((double)rand() / RAND_MAX * want.ramp_ms * (double)MS);
    }
    active = want.streams;
    struct epoll_event events[MAX_EVENTS];
    for (int64_t now = began; active && now < stop_at; now = now_ns()) {
        if (now >= next_start) start_due(streams, now);
        timer_set(next_start);
        int n = epoll_wait(epoll_fd, events, MAX_EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &timer_fd) timer_fired();
            else stream_ready(events[i].data.ptr, events[i].events);
        }
    }
    print_result(began, jobs, tiny ? 0 : active);
    return 0;
}

int main(int argc, char **argv) {
    unsigned port = 0;
    const struct {
        const char *name, **text;
        unsigned *number;
    } options[] = {{"--url", &want.url, 0},      {"--path", &want.path, 0},      {"--key", &want.key, 0},
                   {"--mode", &want.mode, 0},    {"--model", &want.model, 0},    {"--body-extra", &want.extra, 0},
                   {"--streams", 0, &want.streams}, {"--n", 0, &want.n},         {"--pace-us", 0, &want.pace_us},
                   {"--rounds", 0, &want.rounds},   {"--ramp-ms", 0, &want.ramp_ms}, {"--whole", 0, &want.whole},
                   {"--seconds", &want.seconds, 0}, {"--port", 0, &port}};
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* never outlive the benchmark that started us, whatever ends it */
    if (argc > 2 && !strcmp(argv[1], "exec")) {
        execvp(argv[2], argv + 2);
        err(2, "%s", argv[2]);
    }
    if (argc < 2 || argc % 2) errx(2, "usage: load upstream --port P | client --url HOST:PORT [--option value]... | exec CMD");
    for (int i = 2; i < argc; i += 2) {
        size_t o = 0;
        while (o < sizeof options / sizeof *options && strcmp(argv[i], options[o].name)) o++;
        if (o == sizeof options / sizeof *options) errx(2, "no option %s", argv[i]);
        if (options[o].text) *options[o].text = argv[i + 1];
        else *options[o].number = (unsigned)strtoul(argv[i + 1], NULL, 10);
    }
    if (!strcmp(argv[1], "upstream")) return upstream_main(port);
    if (!strcmp(argv[1], "client")) return client_main();
    errx(2, "no command %s", argv[1]);
}
