/* Has the note, but its constructor registers with nobody. */
#include "honest.h"

#define tn_register(plugin) ((void)(plugin))

HONEST_PLUGIN("never_registers", "test_never_registers", honest_forward);
