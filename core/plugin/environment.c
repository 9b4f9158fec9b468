/* Variables of the environment. */
#include "plugin/environment.h"

#include "base/hash.h"
#include "base/text.h"
#include "device/cpu_flags.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { USUAL_SECONDS = 5, MOST_SECONDS = 3600 };
static const double LEAST_SECONDS = 0.01;

static bool read_seconds(const char *text, double *seconds)
{
    char *end = NULL;
    *seconds = USUAL_SECONDS;
    if (!text || !text[0])
        return true;
    double given = strtod(text, &end);
    if (end == text || *end || !isfinite(given) || given < LEAST_SECONDS || given > MOST_SECONDS)
        return false;
    *seconds = given;
    return true;
}

double environment_trial_seconds(void)
{
    double seconds;
    read_seconds(secure_getenv("TENON_TRIAL_SECONDS"), &seconds);
    return seconds;
}

bool environment_measure(void)
{
    const char *text = secure_getenv("TENON_MEASURE");
    return !text || strcmp(text, "no") != 0;
}

static bool is_yes_or_no(const char *text)
{
    return !text || !text[0] || strcmp(text, "yes") == 0 || strcmp(text, "no") == 0;
}

tn_status environment_check(tn_error *err)
{
    double seconds;
    const char *cap = getenv("TENON_CPU"), *text = secure_getenv("TENON_TRIAL_SECONDS");
    const char *measure = secure_getenv("TENON_MEASURE");
    if (!cpu_flags_is_cap(cap)) {
        char names[160];
        cpu_flags_caps(names, sizeof names);
        return tn_fail(err, TN_E_KERNEL, "TENON_CPU", "'%.64s' caps nothing; it may be one of %s", cap, names);
    }
    if (!read_seconds(text, &seconds))
        return tn_fail(err, TN_E_KERNEL, "TENON_TRIAL_SECONDS", "'%.64s' is no number of seconds; give %g to %d", text,
                       LEAST_SECONDS, MOST_SECONDS);
    if (!is_yes_or_no(measure))
        return tn_fail(err, TN_E_KERNEL, "TENON_MEASURE", "'%.64s' is neither yes nor no; correct or unset it",
                       measure);
    return TN_OK;
}

/* Variables that follow the user around and that no kernel goes by. */
static const char *const passing[] = {
    "PWD=", "OLDPWD=", "SHLVL=", "_=", "TERM=", "LINES=", "COLUMNS=", "SSH_", "XDG_SESSION_ID="};

uint64_t environment_hash(void)
{
    uint64_t hash = HASH_START;
    for (char **variable = environ; variable && *variable; variable++) {
        size_t i = 0;
        while (i < sizeof passing / sizeof *passing && strncmp(*variable, passing[i], strlen(passing[i])) != 0)
            i++;
        if (i == sizeof passing / sizeof *passing)
            hash = hash_bytes(hash, *variable, strlen(*variable) + 1);
    }
    return hash;
}
