--[[ baseline_of: saying in the log how jobs stand, whatever was logged of them before.

Uses: state(count) emit(quoted)
]]

local function number_or_null(value)
  return value and string.format('%.0f', value) or 'null'
end

--- The baseline of one job; `job` is nil if Redis does not have it.
local function baseline_of(id, job)
  if not job then
    return '["' .. id .. '",null]'
  end
  local said = {
    quoted(id), quoted(job.state), quoted(job.task), quoted(job.priority or DEFAULT_PRIORITY),
    count(job, 'attempts'), count(job, 'losses'), number_or_null(job.seq), number_or_null(job.due),
    count(job, 'claim'), count(job, 'failed'), count(job, 'lost'), count(job, 'unknown'),
    quoted(job.fence), quoted(job.by), number_or_null(job.since), quoted(job.reason), quoted(job.lane),
  }
  for i = 1, #TRAITS do
    local name = TRAITS[i]
    said[#said + 1] = (NUMBERS[name] and number_or_null or quoted)(job[name])
  end
  return '[' .. table.concat(said, ',') .. ']'
end
