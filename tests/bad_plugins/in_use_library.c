/* No plugin: what in_use.c multiplies with. Tests write another number over this one. */
__attribute__((visibility("default"))) float in_use_library_factor(void);

static const volatile struct {
    char mark[16];
    float factor;
} number = {"IN_USE_LIBRARY_", 1.0f};

float in_use_library_factor(void)
{
    return number.factor;
}
