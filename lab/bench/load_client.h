/* load: the client, which makes streams and counts what comes. Included once, by load.c. */
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
