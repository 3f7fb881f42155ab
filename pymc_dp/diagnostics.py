"""Reports on a finished private run: its guarantee, its cost, and the quality of its draws.

All reports are computed from the published tree, so they cost no privacy.
"""

from pymc_dp.reports.draws import maximum_mean_discrepancy
from pymc_dp.reports.published import privacy_report
from pymc_dp.reports.quality import ClipFraction, Quality, quality
from pymc_dp.reports.verdict import quality_report

__all__ = ["ClipFraction", "Quality", "maximum_mean_discrepancy", "privacy_report", "quality", "quality_report"]
