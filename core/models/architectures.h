/* Inside core: the list of architectures: ARCHITECTURE(arch) for each model_arch, in the order of their model types.
 * models.h declares them with it, models.c looks them up. */
ARCHITECTURE(gemma2)
ARCHITECTURE(llama)
ARCHITECTURE(mixtral)
ARCHITECTURE(qwen2)
ARCHITECTURE(qwen2_5_vl)
ARCHITECTURE(qwen3)
ARCHITECTURE(qwen3_moe)
