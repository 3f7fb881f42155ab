"""Reports on a finished private run: what was guaranteed, what was spent, and whether the draws are usable.

Everything here is computed from the published tree, so it costs no privacy.
"""

from pymc_dp.reports.draws import maximum_mean_discrepancy
from pymc_dp.reports.published import privacy_report
from pymc_dp.reports.quality import ClipFraction, Quality, quality
from pymc_dp.reports.verdict import quality_report

__all__ = ["ClipFraction", "Quality", "maximum_mean_discrepancy", "privacy_report", "quality", "quality_report"]
