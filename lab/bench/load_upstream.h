/* load: the upstream, a fake OpenAI-compatible model server. Included once, by load.c. */
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
    const char *last = NULL; /* read once: sscanf measures the rest of the body each time */
    for (const char *at = body; (at = memmem(at, n - (size_t)(at - body), "[[bench ", 8)); at += 8) last = at;
    if (last) sscanf(last, "[[bench n=%u pace_us=%lld]]", &c->n, &pace_us);
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
