/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * The load of scripts/bench: TCP traffic between two network namespaces, and floods of system calls.
 *
 *     load CLIENT_NETNS_FD SERVER_NETNS_FD ADDRESS PORT
 *
 * The server is a child process, which uses two ports from PORT on. Orders come on standard input,
 * one a line. The answer to each is a line "COUNT SECONDS CPU_SECONDS", the last of both ends:
 *
 *     pin CLIENT_CPU SERVER_CPU      from now on
 *     pingpong CONNECTIONS SECONDS   64 bytes there and back; COUNT: round trips
 *     bulk SECONDS                   COUNT: bytes
 *     churn SECONDS                  connect, 64 bytes there and back, close; COUNT: connections
 *     requests SECONDS               the same with 100 times 64 bytes; COUNT: round trips
 *     getppid SECONDS RATE           system calls, at most RATE a second (0: any); COUNT: calls
 *     receive SECONDS RATE           recv() that finds nothing, the same way
 */
/* clang-format on */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ECHO_PORTS = 1, MESSAGE = 64, BATCH = 256, CHUNK = 64 };
enum { REQUESTS = 100 };
/* The kind of a descriptor, in the upper half of its epoll event. */
enum { ECHO, SINK, LISTENER };

static char buffer[1 << 18];
static const char *address;
static int first_port;

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* CPU time of both ends so far. */
static double busy(clockid_t server) {
    struct timespec client, other;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &client);
    clock_gettime(server, &other);
    return client.tv_sec + other.tv_sec + (client.tv_nsec + other.tv_nsec) / 1e9;
}

static void pin(pid_t who, int cpu) {
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(who, sizeof(set), &set))
        fail("sched_setaffinity");
}

static struct sockaddr_in at(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};

    if (inet_pton(AF_INET, address, &a.sin_addr) != 1)
        fail("address");
    return a;
}

static void watch(int epoll, int fd, int kind) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (unsigned)fd | (uint64_t)kind << 32};

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        fail("epoll_ctl");
}

static void take_all(int epoll, int listener, int kind) {
    int stream, one = 1;

    while ((stream = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
        setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        watch(epoll, stream, kind);
    }
}

static void serve(int ready) {
    int epoll = epoll_create1(0), one = 1;
    struct epoll_event events[BATCH];

    for (int i = 0; i <= ECHO_PORTS; i++) {
        struct sockaddr_in a = at(first_port + i);
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        if (bind(listener, (void *)&a, sizeof(a)) || listen(listener, 4096))
            fail("listen");
        watch(epoll, listener, LISTENER | (i == ECHO_PORTS));
    }
    if (write(ready, "!", 1) != 1)
        fail("ready");
    for (;;) {
        int count = epoll_wait(epoll, events, BATCH, -1);

        for (int i = 0; i < count; i++) {
            int fd = (int)(uint32_t)events[i].data.u64, kind = events[i].data.u64 >> 32;
            long got;

            if (kind & LISTENER) {
                take_all(epoll, fd, kind & SINK);
                continue;
            }
            got = read(fd, buffer, sizeof(buffer));
            if (got < 0 && errno == EAGAIN)
                continue;
            if (got <= 0 || (kind == ECHO && write(fd, buffer, got) != got))
                close(fd);
        }
    }
}

static int dial(int port) {
    struct sockaddr_in a = at(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

    if (fd < 0 || connect(fd, (void *)&a, sizeof(a)))
        fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

static void send_one(int fd) {
    if (write(fd, buffer, MESSAGE) != MESSAGE)
        fail("write");
}

static long receive_one(int fd) {
    long got = 0;

    while (got < MESSAGE) {
        long more = read(fd, buffer, MESSAGE - got);

        if (more <= 0)
            fail("read");
        got += more;
    }
    return got;
}

static long pingpong(int connections, double end) {
    int epoll = epoll_create1(0), *fds = calloc(connections, sizeof(int));
    struct epoll_event events[BATCH];
    long trips = 0;

    for (int i = 0; i < connections; i++) {
        fds[i] = dial(first_port);
        watch(epoll, fds[i], ECHO);
        send_one(fds[i]);
    }
    while (now() < end) {
        int count = epoll_wait(epoll, events, BATCH, 1000);

        for (int i = 0; i < count; i++) {
            receive_one((int)(uint32_t)events[i].data.u64);
            send_one((int)(uint32_t)events[i].data.u64);
            trips++;
        }
    }
    for (int i = 0; i < connections; i++)
        close(fds[i]);
    close(epoll);
    free(fds);
    return trips;
}

static long bulk(double end) {
    int fd = dial(first_port + ECHO_PORTS);
    long bytes = 0;

    while (now() < end) {
        long sent = write(fd, buffer, sizeof(buffer));

        if (sent < 0)
            fail("write");
        bytes += sent;
    }
    close(fd);
    return bytes;
}

/* Connections of so many round trips each; returns all round trips. */
static long churn(long trips, double end) {
    long count = 0;

    while (now() < end) {
        int fd = dial(first_port);

        for (long i = 0; i < trips; i++, count++) {
            send_one(fd);
            receive_one(fd);
        }
        close(fd);
    }
    return count;
}

static long flood(int receiving, double seconds, double rate) {
    int fd = receiving ? dial(first_port) : -1;
    double start = now(), end = start + seconds;
    long calls = 0;

    for (double t = start; t < end; t = now()) {
        if (rate && calls > (t - start) * rate)
            continue;
        for (int i = 0; i < CHUNK; i++) {
            if (receiving)
                recv(fd, buffer, 1, MSG_DONTWAIT);
            else
                syscall(SYS_getppid);
        }
        calls += CHUNK;
    }
    if (fd >= 0)
        close(fd);
    return calls;
}

static long obey(const char *line, double start, pid_t server) {
    double seconds, rate;
    long number, other;

    if (sscanf(line, "pin %ld %ld", &number, &other) == 2) {
        pin(0, number);
        pin(server, other);
        return 0;
    }

    if (sscanf(line, "pingpong %ld %lf", &number, &seconds) == 2)
        return pingpong(number, start + seconds);
    if (sscanf(line, "bulk %lf", &seconds) == 1)
        return bulk(start + seconds);
    if (sscanf(line, "churn %lf", &seconds) == 1)
        return churn(1, start + seconds);
    if (sscanf(line, "requests %lf", &seconds) == 1)
        return churn(REQUESTS, start + seconds);
    if (sscanf(line, "getppid %lf %lf", &seconds, &rate) == 2)
        return flood(0, seconds, rate);
    if (sscanf(line, "receive %lf %lf", &seconds, &rate) == 2)
        return flood(1, seconds, rate);
    fprintf(stderr, "load: unknown order: %s", line);
    exit(2);
}

int main(int argc, char **argv) {
    struct rlimit files;
    int ready[2];
    char line[128], byte;
    clockid_t server_clock;
    pid_t server;

    if (argc != 5)
        return 2;
    address = argv[3];
    first_port = atoi(argv[4]);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    if (pipe(ready))
        fail("pipe");
    server = fork();
    if (!server) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ready[0]);
        if (setns(atoi(argv[2]), CLONE_NEWNET))
            fail("setns");
        serve(ready[1]);
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        return 1;
    if (setns(atoi(argv[1]), CLONE_NEWNET))
        fail("setns");
    if (clock_getcpuclockid(server, &server_clock))
        fail("clock_getcpuclockid");
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        double start = now(), used = busy(server_clock);
        long count = obey(line, start, server);

        printf("%ld %.9f %.9f\n", count, now() - start, busy(server_clock) - used);
        fflush(stdout);
    }
    return 0;
}
