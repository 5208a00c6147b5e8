/*
 * A name server that a test makes slow, and that a test can have tell another address, loaded before the C library.
 *
 * $OUTBOX_TEST_NAMES is a file with the IPv4 address of every name that ends in ".test". While it is empty nobody answers:
 * the caller waits, as with a name server that is down.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What a resolver with its usual settings takes to give up. */
#define ATTEMPTS 200
#define PAUSE_NS 100000000L

typedef int resolve(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static ssize_t look_up(char *address, size_t size)
{
    const char *file = getenv("OUTBOX_TEST_NAMES");
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, address, size - 1);
    close(fd);
    address[length > 0 ? length : 0] = '\0';
    return length;
}

int getaddrinfo(const char *restrict name, const char *restrict service, const struct addrinfo *restrict hints,
                struct addrinfo **restrict out)
{
    resolve *next = (resolve *)dlsym(RTLD_NEXT, "getaddrinfo");
    size_t length = name ? strlen(name) : 0;
    if (length < 5 || strcmp(name + length - 5, ".test") != 0)
        return next(name, service, hints, out);
    char address[64];
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (look_up(address, sizeof address) > 0)
            return next(address, service, hints, out);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return EAI_AGAIN;
}
