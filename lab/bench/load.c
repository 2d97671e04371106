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
#include "load_loop.h"
#include "load_upstream.h"
#include "load_client.h"

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
