/* Inside core: the list of architectures: ARCHITECTURE(arch) for each model_arch, in the order of their model types.
 * models.h declares them with it, models.c looks them up. */
ARCHITECTURE(deepseek_v2)
ARCHITECTURE(deepseek_v3)
ARCHITECTURE(gemma2)
ARCHITECTURE(glm4_moe_lite)
ARCHITECTURE(llama)
ARCHITECTURE(mixtral)
ARCHITECTURE(qwen2)
ARCHITECTURE(qwen3)
ARCHITECTURE(qwen3_moe)
