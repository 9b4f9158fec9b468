/* Any bytes as a kernels.json. What is accepted can be asked, and what it says of kernels can be set again. */
#include "fuzz.h"
#include "fuzz_folder.h"
#include "fuzz_json.h"

#include <tenon/tenon.h>

FUZZ_ENTRY(fuzz_kernels)

int fuzz_kernels(const uint8_t *data, size_t size)
{
    char path[PATH_MAX + 32];
    fuzz_folder_write("kernels.json", size ? data : (const uint8_t *)"", size);
    snprintf(path, sizeof path, "%s/kernels.json", fuzz_folder());
    tn_error err = TN_ERROR_INIT;
    tn_config *config = tn_config_load(path, &err);
    fuzz_agree(config != NULL, &err);
    if (config) {
        for (size_t i = 0; i < tn_config_folder_count(config); i++)
            fuzz_require(tn_config_folder(config, i) && tn_config_folder(config, i)[0] == '/', "a folder is relative");
        fuzz_require(tn_config_folder(config, tn_config_folder_count(config)) == NULL, "a folder behind the last");
        fuzz_require(tn_config_max_packed_mb(config) >= -1, "a bound below -1");
        fuzz_require(tn_config_device(config) != NULL, "no device");
        char *spec = strdup(tn_config_kernels(config));
        fuzz_require(spec && tn_config_set_kernels(config, spec, &err) == TN_OK, "kernels that cannot be set again");
        fuzz_require(strcmp(spec, tn_config_kernels(config)) == 0, "kernels are not the same when they are set again");
        free(spec);
    }
    tn_config_free(config);
    return 0;
}
