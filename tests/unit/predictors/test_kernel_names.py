"""Operators and tiles from real kernel names."""

import pytest

from app.predictors.papers.pm2lat.kernel_names import KernelName, identity, parse

TENSILE = (
    "Cijk_Alik_Bljk_SB_MT64x32x32_MI16x16x4x1_SN_1LDSB1_GSU4_GSUASB_GLS0_ISA908_{}_WGM1",
    "Cijk_Ailk_Bljk_SB_MT128x144x16_MI16x16x4x1_SE_1LDSB1_GSU1_GSUASB_GLS0",
)
NAMES = {
    "ampere_sgemm_128x64_tn": ("cublas", (128, 64), 1, "tn"),
    "ampere_sgemm_32x32_sliced1x4_tn": ("cublas", (32, 32), 4, "tn"),
    "sgemm_128x128x8_NT_vec": ("cublas", (128, 128), 1, "nt"),
    "volta_sgemm_64x64_nn": ("cublas", (64, 64), 1, "nn"),
    "ampere_gcgemm_64x32_nt": ("cublas", (64, 32), 1, "nt"),
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel_"
    "_5x_cublas": ("cublas", (128, 64), 1, "nn"),
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel_"
    "_5x_cublas": ("cublas", (64, 128), 1, "tn"),
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn": ("cublas", (128, 64), 1, "tn"),
    "ampere_sgemm_64x64_splitK_nn": ("cublas", (64, 64), 0, "nn"),
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT": ("cublas", (128, 256), 1, "tn"),
    "void cutlass::Kernel<cutlass_80_simt_sgemm_128x256_8x4_nn_align1>(cutlass_80_simt_sgemm_128x256_8x4_nn_align1::"
    "Params)": ("cutlass", (128, 256), 1, "nn"),
    "cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1": ("cudnn", (128, 64), 1, "nn"),
    TENSILE[0]: ("tensile", (64, 32), 4, "tn"),
    TENSILE[1]: ("tensile", (128, 144), 1, "nn"),
    "vllm_flash_attn_fa3": ("flash", (0, 0), 1, ""),
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80": ("cutlass attention", (0, 0), 1, ""),
    "TritonFp8BlockScaledMMKernel": ("triton", (0, 0), 1, ""),
    "vllm_unquantizedfusedmoe_triton_tritonexperts": ("moe", (0, 0), 1, ""),
    "torch.nn.functional.linear": ("other", (0, 0), 1, ""),
    "": ("other", (0, 0), 1, ""),
}


@pytest.mark.parametrize("name", NAMES)
def test_operators_from_kernel_names(name: str) -> None:
    assert parse(name) == KernelName(*NAMES[name])


def test_instances_of_one_kernel() -> None:
    assert identity(TENSILE[0].format("SU0")) == identity(TENSILE[0].format("SU32"))
    assert identity(TENSILE[0]) != identity(TENSILE[1])
    assert identity("void f<4, (anonymous namespace)::g>(float*, int)") == "void f<4, (anonymous namespace)::g>"
    softmax = "void (anonymous namespace)::softmax_warp_forward<float, float, float, {}, false, false>(float*, int)"
    assert identity(softmax.format(9)) != identity(softmax.format(10))
    assert identity("ampere_sgemm_128x64_tn") != identity("ampere_sgemm_128x64_nn")
