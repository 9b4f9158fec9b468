/* The strings of formats, as expressions: no more than RFC 3339, 4122, 3986, 1123, 4291 and 5321 allow, in places less.
 */
#include "grammar/pattern.h"

#include <string.h>

#define YEAR "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP_YEAR "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(?:" YEAR                                                                                                         \
    "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1["          \
    "0-9]|2[0-8]))|" LEAP_YEAR "-02-29)"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define URI_CHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define GROUP "[0-9A-Fa-f]{1,4}"

const char *pattern_of_format(const char *format)
{
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE "T" TIME},
        {"duration",
         "P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}"
         "D)(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?|T(?:["
         "0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))"},
        {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
        {"email", "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,31})?@" LABEL
                  "(?:\\." LABEL "){1,3}"},
        {"hostname", LABEL "(?:\\." LABEL "){0,3}"},
        {"ipv4", "(?:" BYTE "\\.){3}" BYTE},
        {"ipv6", "(?:(?:" GROUP ":){7}" GROUP "|(?:" GROUP ":){1,7}:|(?:" GROUP ":){1,6}:" GROUP "|(?:" GROUP
                 ":){1,5}(?::" GROUP "){2}|(?:" GROUP ":){1,4}(?::" GROUP "){3}|(?:" GROUP ":){1,3}(?::" GROUP
                 "){4}|(?:" GROUP ":){1,2}(?::" GROUP "){5}|" GROUP ":(?::" GROUP "){6}|:(?:(?::" GROUP "){1,7}|:))"},
        {"uri", "[A-Za-z][A-Za-z0-9+.-]{0,31}:(?://" LABEL "(?:\\." LABEL "){0,3}(?::[0-9]{1,5})?(?:/" URI_CHAR
                "*)*|" URI_CHAR "+(?:/" URI_CHAR "*)*)(?:\\?(?:[/?]|" URI_CHAR ")*)?(?:#(?:[/?]|" URI_CHAR ")*)?"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, format) == 0)
            return formats[i].pattern;
    return NULL;
}
